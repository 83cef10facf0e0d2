"""The same model for onnxruntime's CPU provider: fused attention, and KV caches updated in place.

`GroupQueryAttention` takes the length of each row and reads no further. In self-attention it writes the new key and
value into the cache (past and present may be one buffer); in cross-attention it gets no new keys. In the int8 variant
the caches are int8, with a scale per channel that is fixed at export. For one query `causal=0` computes the same as
`causal=1`, but by a kernel that never splits the keys of one row over threads; the causal kernel does that for a single
row, and then rounds differently than in a batch (docs/decisions/005).

The encoder works on the N tokens of all sources without their padding, (N, D); only around attention they are laid out
as (B, S, D). That is `MultiHeadAttention` with the source lengths, which rounds a single query differently from two or
more, so the axis `source` is at least `LEAST_WIDTH`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from export.builder import CONTRIB, Array
from export.graphs import Parts
from export.quantize import Int8Parts
from export.signature import padded_width
from model.config import ModelConfig

CACHE_LEVELS = 127
HEADROOM = 1.1  # times the largest calibrated value; larger values are clipped


def can_be_fast(config: ModelConfig) -> bool:
    """Whether onnxruntime's kernels compute this model: `GroupQueryAttention` needs a head size divisible by 8."""
    return bool(config.score == "dot" and (config.d_model // config.heads) % 8 == 0)


class FastAttention(Parts):
    """A mixin: attention by onnxruntime's own operators, whatever the matrix products are."""

    def prepare_source(self) -> None:
        g = self.g
        self.lengths = g.cast(self.source_length(), "int32")
        self.layout = g.op("Concat", g.op("Shape", "source"), g.constant([-1]), axis=0)  # (B, S, -1)
        is_token = g.op("Less", self.indices("source", axis=1), g.op("Unsqueeze", "source_length", g.constant([1])))
        is_token = g.reshape(is_token, [-1])  # (B * S,): false at padding
        self.tokens = g.reshape(g.op("NonZero", is_token), [-1])  # (N,): each token's index in the padded layout
        count = g.op("CumSum", g.cast(is_token, "int32"), g.constant(0, "int32"))
        self.places = g.op("Sub", count, g.constant(1, "int32"))  # (B * S,): index in (N,), at padding the one before

    def embed_source(self) -> str:
        g, name = self.g, "source_embedding"
        ids = g.op("Gather", g.reshape("source", [-1]), self.tokens)
        table = self.positions_table(name, padded_width(self.config.max_length))
        at = g.op("Gather", table, g.op("Mod", self.tokens, g.op("Shape", "source", start=1, end=2)), axis=0)
        return self._embedding_norm(g.op("Add", self._tokens(ids, name), at), name)  # (N, D)

    def with_padding(self, x: str) -> str:
        """(N, features) -> (B, S, features)"""
        return self.g.op("Reshape", self.g.op("Gather", x, self.places, axis=0), self.layout)

    def attend_source(self, x: str, name: str) -> tuple[str, str]:
        g = self.g
        packed = self.with_padding(self.linear(x, f"{name}.project_in"))
        q, k, v = g.multi_op("Split", packed, outputs=3, axis=-1, num_outputs=3)
        heads = g.op("MultiHeadAttention", q, k, v, "", self.lengths, domain=CONTRIB, num_heads=self.config.heads)
        without_padding = g.op("Gather", g.reshape(heads, [-1, self.config.d_model]), self.tokens, axis=0)
        return self.linear(without_padding, f"{name}.project_out"), ""

    def keys_values(self, memory: str, name: str) -> tuple[str, str]:
        d_model = self.config.d_model
        both = self.linear(memory, f"{name}.project_in", "keys_values", d_model, 3 * d_model)
        k, v = self.g.multi_op("Split", self.with_padding(both), outputs=2, axis=-1, num_outputs=2)
        return self._split(k), self._split(v)

    def prepare_step(self) -> None:
        g = self.g
        self.positions = g.cast("position", "int32")
        self.past = g.cast(g.op("Shape", "self_key_0", start=2, end=3), "int32")
        self.last_sources = g.op("Sub", g.cast(self.source_length(), "int32"), g.constant([1], "int32"))
        self.width = g.cast(g.op("Shape", "cross_key_0", start=2, end=3), "int32")
        rows = g.op("Shape", "token", start=0, end=1)
        shape = g.op("Concat", rows, g.constant([0, self.config.d_model]), axis=0)
        self.no_keys = g.op("Expand", self._scalar(0.0), shape)  # (R, 0, D)

    def attend_past(self, x: str, layer: int) -> tuple[str, str, str]:
        name = f"decoder.{layer}.self_attention"
        cache = [f"self_key_{layer}", f"self_value_{layer}", self.positions, self.past]
        packed = self.linear(x, f"{name}.project_in")
        heads, key, value = self._attend_cache([packed, "", "", *cache], f"{name}.project_in.weight")
        return self.linear(heads, f"{name}.project_out"), key, value

    def attend_memory(self, x: str, layer: int) -> tuple[str, dict[str, str]]:
        name = f"decoder.{layer}.cross_attention"
        cache = [f"cross_key_{layer}", f"cross_value_{layer}", self.last_sources, self.width]
        inputs = [self.project_queries(x, name), self.no_keys, self.no_keys, *cache]
        heads, key, value = self._attend_cache(inputs, f"{name}.project_in.weight keys_values")
        cross_out = {f"kept_key_{layer}": key, f"kept_value_{layer}": value}
        return self.linear(heads, f"{name}.project_out"), cross_out

    def _attend_cache(self, inputs: list[str], product: str) -> list[str]:
        """Attention output and updated keys and values; `product` is the matrix product that made keys and values."""
        scales, attributes = self.cache_scales(product)
        if scales:
            inputs = [*inputs, "", "", "", "", "", *scales]
        heads = self.config.heads
        attributes |= {"num_heads": heads, "kv_num_heads": heads, "causal": 0}
        return self.g.multi_op("GroupQueryAttention", *inputs, outputs=3, domain=CONTRIB, **attributes)

    def cache_scales(self, product: str) -> tuple[list[str], dict[str, Any]]:  # noqa: ARG002
        """Scale inputs of quantized caches and the attributes that go with them; none for float caches."""
        return [], {}


class FastParts(FastAttention, Parts):
    pass


class FastInt8Parts(FastAttention, Int8Parts):
    def channel_scales(self, product: str) -> Array:
        """The scale of each cached channel, keys then values: (2D,)"""
        most = np.array(self.ranges[product].cached)
        return np.maximum(HEADROOM * most / CACHE_LEVELS, 1e-8).astype(np.float32)

    def cache_scales(self, product: str) -> tuple[list[str], dict[str, Any]]:
        names = []
        for side, scales in zip(("key", "value"), np.split(self.channel_scales(product), 2), strict=True):
            array = scales.reshape(self.config.heads, 1, self.head)
            names.append(self.g.weight(f"{product} {side} scale", array))
        return names, {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}

    def keys_values(self, memory: str, name: str) -> tuple[str, str]:
        """Keys and values as int8: the product's own scales already divide by the channel scales."""
        g, d_model, product = self.g, self.config.d_model, f"{name}.project_in.weight keys_values"
        weight = np.ascontiguousarray(self.weights[f"{name}.project_in.weight"][d_model:].T)
        bias = self.weights[f"{name}.project_in.bias"][d_model:] if self.config.bias else None
        both = self.product(
            memory, product, weight, f"{name}.project_in.bias keys_values", bias, self.channel_scales(product)
        )
        rounded = g.op("QuantizeLinear", both, self._scalar(1.0), g.constant(0, "int8"))
        k, v = g.multi_op("Split", self.with_padding(rounded), outputs=2, axis=-1, num_outputs=2)
        return self._split(k), self._split(v)
