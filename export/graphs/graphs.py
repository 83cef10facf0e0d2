"""The model as ONNX graphs of standard operators: encoder, decoder step, and the full pass with attention weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import onnx

from attendant.export import signature
from attendant.export.graphs.builder import Array, GraphBuilder, WeightStore
from attendant.export.graphs.parts import Parts
from attendant.export.signature import Sizes
from attendant.model.config import ModelConfig


def sizes_of(config: ModelConfig) -> Sizes:
    return Sizes(**{field.name: getattr(config, field.name) for field in dataclasses.fields(Sizes)})


def build_graph(
    name: str,
    config: ModelConfig,
    weights: dict[str, Array],
    store: WeightStore | None = None,
    location: str = "",
    make_parts: Callable[[GraphBuilder, ModelConfig, dict[str, Array]], Parts] | None = None,
    dtype: str = "float32",
) -> onnx.ModelProto:
    """One of the plain graphs of `signature.GRAPHS`, from a model's config and arrays (`export.weights.arrays_of`).

    `make_parts` builds the layers, in `dtype` by default.
    """
    sizes, graph = sizes_of(config), GraphBuilder(name, dtype, store=store)
    for value in signature.inputs(name, sizes):
        graph.input(value.name, value.kind, value.shape(sizes))
    parts = (make_parts or Parts)(graph, config, weights)
    results = {"encoder": encoder, "step": step, "full": full, "merge": merge}[name](parts)
    for value in signature.outputs(name, sizes):
        graph.output(results[value.name], value.name, value.kind, value.shape(sizes))
    return graph.build(store, location)


def encoder(p: Parts) -> dict[str, str]:
    memory, _ = p.encode()
    results: dict[str, str] = {}
    for layer in range(p.config.decoder_layers):
        k, v = p.keys_values(memory, f"decoder.{layer}.cross_attention")
        results |= {f"cross_key_{layer}": k, f"cross_value_{layer}": v}
    return results


def full(p: Parts) -> dict[str, str]:
    memory, encoder_weights = p.encode()
    g, x = p.g, p.embed("target", "target_embedding", p.config.max_length)
    causal, bias = p.causal_mask(), ""
    if p.relative:
        places = p.indices("target", axis=1)
        bias = p.bias("decoder_bias", places, places)
    decoder_weights, cross_weights = [], []
    for layer in range(p.config.decoder_layers):
        name = f"decoder.{layer}"
        q, k, v = p.queries_keys_values(p.before(x, f"{name}.self_residual"), f"{name}.self_attention")
        attended, weights = p.attend(q, k, v, causal, f"{name}.self_attention", bias)
        x = p.after(x, attended, f"{name}.self_residual")
        decoder_weights.append(weights)
        q = p.queries(p.before(x, f"{name}.cross_residual"), f"{name}.cross_attention")
        k, v = p.keys_values(memory, f"{name}.cross_attention")
        attended, weights = p.attend(q, k, v, p.source_mask, f"{name}.cross_attention")
        x = p.after(x, attended, f"{name}.cross_residual")
        cross_weights.append(weights)
        x = p.feed_forward(x, name)
    return {
        "logprobs": p.logprobs(x),
        "encoder_attention": _stack(g, encoder_weights),
        "decoder_attention": _stack(g, decoder_weights),
        "cross_attention": _stack(g, cross_weights),
    }


def step(p: Parts) -> dict[str, str]:
    """One decoder step for the last token of each row: activations are (R, 1, D)."""
    g = p.g
    ids = g.op("Unsqueeze", "token", g.constant([1]))  # (R, 1)
    x = p.embed_at(ids, g.op("Unsqueeze", "position", g.constant([1])), "target_embedding")
    p.prepare_step()
    results: dict[str, str] = {}
    for layer in range(p.config.decoder_layers):
        name = f"decoder.{layer}"
        attended, key, value = p.attend_past(p.before(x, f"{name}.self_residual"), layer)
        results |= {f"present_key_{layer}": key, f"present_value_{layer}": value}
        x = p.after(x, attended, f"{name}.self_residual")
        attended = p.attend_memory(p.before(x, f"{name}.cross_residual"), layer)
        x = p.after(x, attended, f"{name}.cross_residual")
        x = p.feed_forward(x, name)
    results["logprobs"] = p.logprobs(g.op("Squeeze", x, g.constant([1])))
    results["top_logprobs"], results["top_ids"] = g.multi_op("TopK", results["logprobs"], "top", outputs=2, axis=-1)
    return results


def merge(p: Parts) -> dict[str, str]:
    """Rows of two caches, gathered by index and cut or padded to one length: reorders a KV cache on its device."""
    g = p.g
    both = []
    for name in ("held", "added"):
        cut = g.op("Slice", name, g.constant([0]), "length", g.constant([2]))
        missing = g.op("Sub", "length", g.op("Shape", cut, start=2, end=3))
        both.append(g.op("Pad", cut, g.op("Concat", g.constant([0] * 6), missing, g.constant([0]), axis=0)))
    return {"merged": g.op("Gather", g.op("Concat", *both, axis=0), "index", axis=0)}


def _stack(g: GraphBuilder, layers: list[str]) -> str:
    """L of (B, H, T, S) -> (B, L, H, T, S)"""
    return g.op("Concat", *(g.op("Unsqueeze", layer, g.constant([1])) for layer in layers), axis=1)
