"""The layers of T5 under Hugging Face's names, translated to ours. No weight has a bias."""

from __future__ import annotations

import math

from torch import Tensor

from attendant.model.config import ModelConfig
from attendant.model.importers.problems import Tensors, join

PREFIX = "model."  # before the names of encoder and decoder
Found = dict[str, Tensor | None]


def layers_of(tensors: Tensors, side: str) -> int:
    return tensors.layers(rf"{PREFIX}{side}\.block\.(\d+)\.")


def take_stack(tensors: Tensors, side: str, config: ModelConfig, layers: int) -> dict[str, Tensor]:
    """The layers of one side ("encoder" or "decoder") with its relative positions and last norm, under our names."""
    found: Found = {}
    kinds = [("SelfAttention", "self"), ("EncDecAttention", "cross")][: 1 if side == "encoder" else 2]
    for i in range(layers):
        theirs, ours = f"{PREFIX}{side}.block.{i}.layer", f"{side}.{i}"
        for place, (kind, name) in enumerate(kinds):
            found |= _attention(tensors, f"{theirs}.{place}.{kind}", f"{ours}.{name}_attention", config)
            found |= _norm(tensors, f"{theirs}.{place}.layer_norm", f"{ours}.{name}_residual.norm", config)
        last = len(kinds)
        found |= _feed_forward(tensors, f"{theirs}.{last}.DenseReluDense", f"{ours}.feed_forward", config)
        found |= _norm(tensors, f"{theirs}.{last}.layer_norm", f"{ours}.feed_residual.norm", config)
    table = f"{PREFIX}{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    found[f"{side}_bias.table"] = tensors.get(table, config.relative_buckets, config.heads)
    # The first T5 has a table here that nothing reads.
    tensors.ignore(rf"{PREFIX}decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight")
    found |= _norm(tensors, f"{PREFIX}{side}.final_layer_norm", f"{side}_norm", config)
    return {name: value for name, value in found.items() if value is not None}


def _attention(tensors: Tensors, theirs: str, ours: str, config: ModelConfig) -> Found:
    """T5's scores are not divided by sqrt(d), as ours are: its queries are multiplied by that."""
    q, k, v = (tensors.get(f"{theirs}.{part}.weight", config.inner, config.d_model) for part in "qkv")
    scaled = None if q is None else q * math.sqrt(config.head)
    return {
        f"{ours}.project_in.weight": join([scaled, k, v]),
        f"{ours}.project_out.weight": tensors.get(f"{theirs}.o.weight", config.d_model, config.inner),
    }


def _feed_forward(tensors: Tensors, theirs: str, ours: str, config: ModelConfig) -> Found:
    names = ("wi_0", "wi_1") if config.gated else ("wi",)
    return {
        f"{ours}.widen.weight": tensors.joined([f"{theirs}.{n}.weight" for n in names], config.d_ff, config.d_model),
        f"{ours}.narrow.weight": tensors.get(f"{theirs}.wo.weight", config.d_model, config.d_ff),
    }


def _norm(tensors: Tensors, theirs: str, ours: str, config: ModelConfig) -> Found:
    return {f"{ours}.weight": tensors.get(f"{theirs}.weight", config.d_model)}
