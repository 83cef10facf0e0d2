"""The graphs that decode on a CPU: operators of our own, a layer each, with their definitions (definitions.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx

from attendant.export import signature
from attendant.export.graphs.builder import OURS, Array, GraphBuilder, WeightStore
from attendant.export.graphs.definitions import attributes_of, define, optional_attributes
from attendant.export.graphs.graphs import sizes_of
from attendant.export.graphs.parts import LAYER_NORM_EPSILON, RMS_EPSILON, Parts
from attendant.export.graphs.quantize import Int8Parts
from attendant.export.graphs.unpacking import PackedParts
from attendant.export.signature import padded_width
from attendant.model.config import ModelConfig

HEAD_UNIT = 8  # features of a head are a multiple of this
WIDTH = 16  # and d_model, d_ff and all heads together of this


def has_kernels(config: ModelConfig) -> bool:
    """Whether the operators compute this model."""
    widths = (config.d_model, config.d_ff, config.inner)
    return config.score == "dot" and config.head % HEAD_UNIT == 0 and all(width % WIDTH == 0 for width in widths)


def build_kernel_graph(
    name: str,
    config: ModelConfig,
    weights: dict[str, Array],
    int8: bool,
    store: WeightStore | None = None,
    location: str = "",
) -> onnx.ModelProto:
    """`kernel_encoder` or `kernel_step` of `signature.GRAPHS`."""
    sizes, graph = sizes_of(config), GraphBuilder(name, cache_dtype="int8" if int8 else "", store=store)
    for value in signature.inputs(name, sizes, int8):
        graph.input(value.name, value.kind, value.shape(sizes))
    build: Callable[[KernelGraph], dict[str, str]] = {"kernel_encoder": encoder, "kernel_step": step}[name]
    parts = (Int8Parts if int8 else PackedParts)(graph, config, weights)
    results = build(KernelGraph(graph, parts, int8))
    for value in signature.outputs(name, sizes, int8):
        graph.output(results[value.name], value.name, value.kind, value.shape(sizes))
    return graph.build(store, location)


class KernelGraph:
    """A graph of operators of our own; `parts` names the weights, which the plain graphs share."""

    def __init__(self, graph: GraphBuilder, parts: Parts, int8: bool) -> None:
        self.g, self.p, self.config, self.int8 = graph, parts, parts.config, int8
        self.scale = ["scale"] if int8 else []  # of caches

    def op(self, kind: str, *inputs: str, outputs: int = 1, norm: bool = False) -> list[str]:
        """Add an operator with all its attributes, and its definition."""
        config = self.config
        known: dict[str, Any] = {
            "heads": config.heads,
            "pre_norm": int(config.norm == "pre"),
            "activation": config.activation,
            "epsilon": RMS_EPSILON if config.norm_kind == "rms" else LAYER_NORM_EPSILON,
            "int8": int(self.int8),
            "norm": int(norm),
            "vocabulary": config.target_vocab,
            **optional_attributes(config),
        }
        self.g.define(define(kind, config, self.int8))
        attributes = {name: known[name] for name in attributes_of(kind, config)}
        return self.g.multi_op(kind, *inputs, outputs=outputs, domain=OURS, **attributes)

    def embed(self, kind: str, inputs: tuple[str, str], name: str, width: int) -> str:
        p, norm = self.p, bool(self.config.embedding_norm)
        operands = [*p.embedding_operands(name), p.positions_table(name, width)]
        return self.op(kind, *inputs, *operands, *self.norm(f"{name}.norm", norm), norm=norm)[0]

    def products(self, layer: str, *names: str) -> list[str]:
        """The operands of some linear layers of a layer."""
        return [operand for name in names for operand in self.p.operands(self.p.matrix(f"{layer}.{name}"))]

    def norms(self, layer: str, *names: str) -> list[str]:
        return [operand for name in names for operand in self.norm(f"{layer}.{name}.norm")]

    def bias(self, name: str) -> list[str]:
        """The table of relative positions, where the model has them."""
        return [self.g.weight(name, self.p.weights[name])] if self.p.relative else []

    def norm(self, name: str, used: bool = True) -> list[str]:
        """The operands of a norm; stand-ins where the model has none."""
        zeros = self.p.zeros(self.config.d_model) if not used else ""
        return self.p.norm_operands(name) if used else [zeros, zeros]


def encoder(k: KernelGraph) -> dict[str, str]:
    p, config = k.p, k.config
    length = p.source_length()
    x = k.embed("EmbedSource", ("source", "source_length"), "source_embedding", padded_width(config.max_length))
    for layer in range(config.encoder_layers):
        name = f"encoder.{layer}"
        operands = k.products(name, "self_attention.project_in", "self_attention.project_out")
        operands += k.products(name, "feed_forward.widen", "feed_forward.narrow")
        operands += [*k.norms(name, "self_residual", "feed_residual"), *k.bias("encoder_bias")]
        [x] = k.op("EncoderLayer", x, length, "source_length", *operands)
    memory = p.last_norm(x, "encoder_norm")
    results: dict[str, str] = {}
    for layer in range(config.decoder_layers):
        operands = p.operands(p.keys_values_matrix(f"decoder.{layer}.cross_attention"))
        names = [f"cross_{part}_{layer}" for part in ("key", "value", *k.scale)]
        found = k.op("CrossKeysValues", memory, "source", "source_length", *operands, outputs=len(names))
        results |= dict(zip(names, found, strict=True))
    return results


def step(k: KernelGraph) -> dict[str, str]:
    p, config = k.p, k.config
    length = p.source_length()
    x = k.embed("EmbedTarget", ("token", "position"), "target_embedding", config.max_length)
    results: dict[str, str] = {}
    for layer in range(config.decoder_layers):
        name = f"decoder.{layer}"
        caches = [f"{side}_{part}_{layer}" for side in ("self", "cross") for part in ("key", "value", *k.scale)]
        operands = k.products(name, "self_attention.project_in", "self_attention.project_out")
        operands += p.operands(p.queries_matrix(f"{name}.cross_attention"))
        operands += k.products(name, "cross_attention.project_out", "feed_forward.widen", "feed_forward.narrow")
        operands += [*k.norms(name, "self_residual", "cross_residual", "feed_residual"), *k.bias("decoder_bias")]
        names = [f"present_{part}_{layer}" for part in ("key", "value", *k.scale)]
        inputs = [x, "position", "source_row", length, *caches, *operands]
        x, *found = k.op("DecoderLayer", *inputs, outputs=1 + len(names))
        results |= dict(zip(names, found, strict=True))
    operands = [*p.output_operands(), *k.norm("decoder_norm", p.has_last_norm)]
    found = k.op("Vocabulary", x, *operands, "top", "whole", outputs=3, norm=p.has_last_norm)
    return results | dict(zip(("top_logprobs", "top_ids", "logprobs"), found, strict=True))
