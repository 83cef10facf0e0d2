"""Parts that the definitions of several operators share (definitions.py has the legend of shapes)."""

from __future__ import annotations

import math
from collections.abc import Callable

from attendant.export.graphs.builder import FunctionBuilder
from attendant.export.graphs.parts import LAYER_NORM_EPSILON, activate, relative_bias, rms_norm
from attendant.export.graphs.quantize import int8_tokens, integer_product
from attendant.export.graphs.unpacking import unpack_f32
from attendant.model.config import ModelConfig


class Body:
    """The function of one operator while it is built, and the names of its inputs."""

    def __init__(self, name: str, config: ModelConfig, int8: bool) -> None:
        self.g, self.config, self.int8 = FunctionBuilder(name), config, int8
        self.head = config.head
        self.inputs: list[str] = []

    def takes(self, *names: str) -> None:
        self.inputs += names

    def takes_products(self, *names: str) -> None:
        parts = ("packed", "scale", "sums", "bias") if self.int8 else ("weight", "bias")
        self.takes(*(f"{name}_{part}" for name in names for part in parts))

    def product(self, x: str, name: str, rows: int, columns: int) -> str:
        """x (..., rows) -> (..., columns)"""
        if self.int8:
            return integer_product(
                self.g, x, (rows, columns), f"{name}_packed", f"{name}_scale", f"{name}_bias"
            )  # `sums` follow from the weight
        weight = unpack_f32(self.g, f"{name}_weight", columns)
        return self.g.op("Add", self.g.op("MatMul", x, weight), f"{name}_bias")

    def norm(self, x: str, name: str) -> str:
        prefix = f"{name}_" if name else ""
        if self.config.norm_kind == "rms":
            return rms_norm(self.g, x, f"{prefix}gamma")
        inputs = (x, f"{prefix}gamma", f"{prefix}beta")
        return self.g.op("LayerNormalization", *inputs, axis=-1, epsilon=LAYER_NORM_EPSILON)

    def residual(self, x: str, sublayer: Callable[[str], str], norm: str) -> str:
        """x + f(norm(x)), or norm(x + f(x)) in a post-norm model"""
        if self.config.norm == "pre":
            return self.g.op("Add", x, sublayer(self.norm(x, norm)))
        return self.norm(self.g.op("Add", x, sublayer(x)), norm)

    def feed_forward(self, x: str) -> str:
        config = self.config
        wide = activate(self.g, self.product(x, "widen", config.d_model, config.widened), config)
        return self.product(wide, "narrow", config.d_ff, config.d_model)

    def embed(self, ids: str, positions: str, words: int) -> str:
        """ids (L,), below `words`, at positions (L,) -> (L, D)"""
        g = self.g
        if self.int8:
            tokens = int8_tokens(g, ids, "table", "table_scale", (words, self.config.d_model))
        else:
            tokens = g.op("Mul", g.op("Gather", "table", ids, axis=0), "table_scale")
        if self.config.positions != "relative":
            tokens = g.op("Add", tokens, g.op("Gather", "positions", positions, axis=0))
        return self.norm(tokens, "") if self.config.embedding_norm else tokens

    def takes_bias(self) -> None:
        """The table of relative positions' bias, the last input."""
        if self.config.positions == "relative":
            self.takes("bias")

    def bias(self, queries: str, keys: str, later: bool) -> str:
        """Relative positions' bias of scores, by the positions of queries (T,) and keys (S,) -> (H, T, S)"""
        return relative_bias(self.g, "bias", self.config, queries, keys, later)

    def lay_out(self, lengths: str, width: str) -> tuple[str, str, str]:
        """Lengths (B,) -> where each token is in (B * width,), (N,); where each place's token is, (B * width,); a mask.

        At padding, which the mask (B * width,) is false at, a place has the token before it.
        """
        g = self.g
        is_token = g.op("Less", self.indices(width), g.op("Unsqueeze", lengths, g.constant([1])))
        is_token = g.reshape(is_token, [-1])
        tokens = g.reshape(g.op("NonZero", is_token), [-1])
        count = g.op("CumSum", g.cast(is_token, "int32"), g.constant(0, "int32"))
        return tokens, g.op("Sub", count, g.constant(1, "int32")), is_token

    def indices(self, size: str) -> str:
        """0, 1, ... to a size (1,)"""
        g = self.g
        return g.op("Range", g.constant(0), g.op("Squeeze", size), g.constant(1))

    def attention(self, q: str, k: str, v: str, mask: str, scale: str = "", bias: str = "") -> str:
        """q (B, H, T, d), k and v (B, H, S, d) -> (B, H, T, d); the scales (B, 2, H, S) are those of int8 k and v

        `bias` is added to the scores; it broadcasts to (B, H, T, S).
        """
        g = self.g
        factor = g.constant(1 / math.sqrt(self.head), "float")
        if scale:
            key_scale, value_scale = (
                g.op("Unsqueeze", g.op("Gather", scale, g.constant(i), axis=1), g.constant([2])) for i in range(2)
            )  # (B, H, 1, S)
            factor = g.op("Mul", key_scale, factor)
        scores = g.op("Mul", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2])), factor)
        if bias:
            scores = g.op("Add", scores, bias)
        weights = g.op("Softmax", g.op("Where", mask, scores, g.constant(-math.inf, "float")), axis=-1)
        if scale:
            weights = g.op("Mul", weights, value_scale)
        return g.op("MatMul", weights, v)

    def levels(self, cache: str) -> str:
        """A cache in f32, not multiplied by its scales."""
        return self.g.cast(cache, "float32") if self.int8 else cache

    def cached(self, levels: str) -> str:
        """The inverse of `levels`."""
        return self.g.cast(levels, "int8") if self.int8 else levels
