"""The same model for onnxruntime's CPU provider: attention as one node, and caches that are written in place.

`GroupQueryAttention` takes a position for each row and looks at no more than a row has. Over a row's own tokens it
writes the new key and value into the cache, where past and present are one buffer; over its source there is nothing new
to write. In the int8 variant it reads keys and values of 8 bits, with a scale for each channel that is fixed at export.
With one query `causal=0` is the same function, computed by a kernel that never splits a row's keys over threads: the
causal one does so for a lone row, and then rounds otherwise than in a batch (docs/decisions/005).
The encoder has `MultiHeadAttention`, which takes the lengths of the sources; its bits for a query depend on whether the
query is alone, so `source` is at least two wide.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from export.builder import CONTRIB, Array
from export.graphs import Parts
from export.quantize import Int8Parts
from model.config import ModelConfig

CACHE_LEVELS = 127
HEADROOM = 1.1  # over the largest value seen: what is beyond it is cut off


def can_be_fast(config: ModelConfig) -> bool:
    """`GroupQueryAttention` wants heads of a multiple of 8 features."""
    return bool(config.score == "dot" and (config.d_model // config.heads) % 8 == 0)


class FastAttention(Parts):
    """Mixed in before the class that knows the precision."""

    def prepare_source(self) -> None:
        self.lengths = self.g.cast("source_length", "int32")

    def attend_source(self, x: str, name: str) -> tuple[str, str]:
        g = self.g
        q, k, v = g.op("Split", self.linear(x, f"{name}.project_in"), outputs=3, axis=-1, num_outputs=3)
        gathered = g.op("MultiHeadAttention", q, k, v, "", self.lengths, domain=CONTRIB, num_heads=self.config.heads)
        return self.linear(gathered, f"{name}.project_out"), ""

    def prepare_step(self) -> None:
        g = self.g
        self.positions = g.cast("position", "int32")
        self.past = g.cast(g.op("Shape", "self_key_0", start=2, end=3), "int32")
        self.last_sources = g.op("Sub", g.cast("source_length", "int32"), g.constant([1], "int32"))
        self.width = g.cast(g.op("Shape", "cross_key_0", start=2, end=3), "int32")
        rows = g.op("Shape", "token", start=0, end=1)
        shape = g.op("Concat", rows, g.constant([0, self.config.d_model]), axis=0)
        self.nothing = g.op("Expand", self._scalar(0.0), shape)  # (R, 0, D): no new keys and values

    def attend_past(self, x: str, layer: int) -> tuple[str, str, str]:
        name = f"decoder.{layer}.self_attention"
        gathered, key, value = self._attend_cache(
            [self.linear(x, f"{name}.project_in"), "", "", f"self_key_{layer}", f"self_value_{layer}",
             self.positions, self.past], f"{name}.project_in.weight",
        )  # fmt: skip
        return self.linear(gathered, f"{name}.project_out"), key, value

    def attend_memory(self, x: str, layer: int) -> tuple[str, dict[str, str]]:
        name = f"decoder.{layer}.cross_attention"
        gathered, key, value = self._attend_cache(
            [self.project_queries(x, name), self.nothing, self.nothing, f"cross_key_{layer}", f"cross_value_{layer}",
             self.last_sources, self.width], f"{name}.project_in.weight keys_values",
        )  # fmt: skip
        kept = {f"kept_key_{layer}": key, f"kept_value_{layer}": value}
        return self.linear(gathered, f"{name}.project_out"), kept

    def _attend_cache(self, inputs: list[str], product: str) -> list[str]:
        """What each row gathers, and its keys and values; `product` is what these come from."""
        scales, attributes = self.cache_scales(product)
        if scales:
            inputs = [*inputs, "", "", "", "", "", *scales]
        heads = self.config.heads
        attributes |= {"num_heads": heads, "kv_num_heads": heads, "causal": 0}
        found: list[str] = self.g.op("GroupQueryAttention", *inputs, outputs=3, domain=CONTRIB, **attributes)
        return found

    def cache_scales(self, product: str) -> tuple[list[str], dict[str, Any]]:  # noqa: ARG002
        """The scales of cached keys and values, and how they are meant; none where these are cached as they are."""
        return [], {}


class FastParts(FastAttention, Parts):
    pass


class FastInt8Parts(FastAttention, Int8Parts):
    def channel_scales(self, product: str) -> Array:
        """Of the keys, then of the values: (2D,)"""
        most = np.array(self.ranges[product].cached)
        return np.maximum(HEADROOM * most / CACHE_LEVELS, 1e-8).astype(np.float32)

    def cache_scales(self, product: str) -> tuple[list[str], dict[str, Any]]:
        names = []
        for side, scales in zip(("key", "value"), np.split(self.channel_scales(product), 2), strict=True):
            array = scales.reshape(self.config.heads, 1, self.head)
            names.append(self.g.weight(f"{product} {side} scale", array))
        return names, {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}

    def keys_values(self, memory: str, name: str) -> tuple[str, str]:
        """The product gives multiples of each channel's scale, so that only rounding is left."""
        g, d_model, product = self.g, self.config.d_model, f"{name}.project_in.weight keys_values"
        weight = np.ascontiguousarray(self.weights[f"{name}.project_in.weight"][d_model:].T)
        bias = self.weights[f"{name}.project_in.bias"][d_model:] if self.config.bias else None
        both = self.product(
            memory, product, weight, f"{name}.project_in.bias keys_values", bias, self.channel_scales(product)
        )
        rounded = g.op("QuantizeLinear", both, self._scalar(1.0), g.constant(0, "int8"))
        k, v = g.op("Split", rounded, outputs=2, axis=-1, num_outputs=2)
        return self._split(k), self._split(v)
