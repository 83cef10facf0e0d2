"""The same model for onnxruntime's CPU provider: attention as one node, and a cache that is written in place.

`GroupQueryAttention` takes a position for each row, looks at no more than a row has, and writes the new key and value
into the cache where past and present are one buffer. `MultiHeadAttention` takes the lengths of the sources. Its bits
for a query depend on whether the query is alone, so no source has a single place: `cell` and `source` are at least
two wide.
"""

from __future__ import annotations

from export.builder import CONTRIB
from export.graphs import Parts
from export.quantize import Int8Parts
from model.config import ModelConfig


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
        self.prepare_source()
        self.positions = g.cast("position", "int32")
        self.capacity = g.cast(g.op("Shape", "self_key_0", start=2, end=3), "int32")
        # A row of (R, 1, D) as a place of (B, K, D) and back, each in one GatherND.
        first = g.op("Unsqueeze", "cell", g.constant([2]))
        self.to_places = g.op("Concat", first, g.op("Sub", first, first), axis=2)  # (B, K, 2): row, 0
        width = g.op("Shape", "cell", start=1, end=2)
        place = g.op("Unsqueeze", "place", g.constant([1]))
        pair = g.op("Concat", g.op("Div", place, width), g.op("Mod", place, width), axis=1)
        self.to_rows = g.op("Unsqueeze", pair, g.constant([1]))  # (R, 1, 2): source, place

    def attend_past(self, x: str, layer: int) -> tuple[str, str, str]:
        name, heads = f"decoder.{layer}.self_attention", self.config.heads
        gathered, key, value = self.g.op(
            "GroupQueryAttention",
            self.linear(x, f"{name}.project_in"), "", "", f"self_key_{layer}", f"self_value_{layer}",
            self.positions, self.capacity,
            outputs=3, domain=CONTRIB, num_heads=heads, kv_num_heads=heads,
        )  # fmt: skip
        return self.linear(gathered, f"{name}.project_out"), key, value

    def attend_memory(self, x: str, layer: int) -> str:
        g, name = self.g, f"decoder.{layer}.cross_attention"
        q = g.op("GatherND", self.project_queries(x, name), self.to_places)  # (B, K, D)
        gathered = g.op(
            "MultiHeadAttention", q, f"cross_key_{layer}", f"cross_value_{layer}", "", self.lengths,
            domain=CONTRIB, num_heads=self.config.heads,
        )  # fmt: skip
        return self.linear(g.op("GatherND", gathered, self.to_rows), f"{name}.project_out")


class FastParts(FastAttention, Parts):
    pass


class FastInt8Parts(FastAttention, Int8Parts):
    pass
