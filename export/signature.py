"""The graphs' inputs, outputs and axes, in one table that export, verification and service read.

An axis is named where its length is free, and is a number where the model fixes it. `{layer}` stands for each decoder
layer. Standard library only.

    batch    requests                  rows     hypotheses being extended, each of one request
    source   tokens of the longest source, with its end token
    target   tokens of the longest target, with its start token
    past     tokens already cached of the longest row
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The lengths that a model fixes."""

    source_vocab: int
    target_vocab: int
    d_model: int
    d_ff: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    max_length: int

    @property
    def head(self) -> int:
        return self.d_model // self.heads


@dataclass(frozen=True)
class Value:
    """An input or an output of a graph."""

    name: str
    kind: str  # int64, float32, or real: the precision of the variant
    axes: tuple[str, ...]  # free axes, and fields of Sizes
    meaning: str

    def shape(self, sizes: Sizes) -> tuple[str | int, ...]:
        """The axes, with those that the model fixes as numbers."""
        return tuple(axis if axis in FREE_AXES else int(getattr(sizes, axis)) for axis in self.axes)


FREE_AXES = ("batch", "rows", "source", "target", "past")
CROSS = ("batch", "heads", "source", "head")
PAST = ("rows", "heads", "past", "head")
NEW = ("rows", "heads", "head")

SOURCE = (
    Value("source", "int64", ("batch", "source"), "source ids, ending in the end token, padded on the right"),
    Value("source_length", "int64", ("batch",), "tokens of each source that are not padding"),
)
CROSS_MEMORY = (
    Value("cross_key_{layer}", "real", CROSS, "what the decoder layer's queries are compared with"),
    Value("cross_value_{layer}", "real", CROSS, "what they gather"),
)

GRAPHS: dict[str, tuple[tuple[Value, ...], tuple[Value, ...]]] = {
    "encoder": (SOURCE, CROSS_MEMORY),
    "step": (
        (
            Value("token", "int64", ("rows",), "the last token of each row"),
            Value("position", "int64", ("rows",), "how many tokens of each row are cached"),
            Value("request", "int64", ("rows",), "the source that each row belongs to"),
            SOURCE[1],
            *CROSS_MEMORY,
            Value("self_key_{layer}", "real", PAST, "keys of the cached tokens; what is past `position` is ignored"),
            Value("self_value_{layer}", "real", PAST, "their values"),
        ),
        (
            Value("logprobs", "float32", ("rows", "target_vocab"), "log-probability of every next token"),
            Value("new_key_{layer}", "real", NEW, "the key of this token, to be cached at `position`"),
            Value("new_value_{layer}", "real", NEW, "its value"),
        ),
    ),
    "full": (
        (*SOURCE, Value("target", "int64", ("batch", "target"), "target ids from the start token on, padded")),
        (
            Value("logprobs", "float32", ("batch", "target", "target_vocab"), "of the token after each position"),
            Value(
                "encoder_attention", "real", ("batch", "encoder_layers", "heads", "source", "source"),
                "where each source token looks",
            ),
            Value(
                "decoder_attention", "real", ("batch", "decoder_layers", "heads", "target", "target"),
                "where each target token looks among those before it",
            ),
            Value(
                "cross_attention", "real", ("batch", "decoder_layers", "heads", "target", "source"),
                "where each target token looks in the source",
            ),
        ),
    ),
}  # fmt: skip


def inputs(graph: str, sizes: Sizes) -> list[Value]:
    return _spread(GRAPHS[graph][0], sizes)


def outputs(graph: str, sizes: Sizes) -> list[Value]:
    return _spread(GRAPHS[graph][1], sizes)


def _spread(values: tuple[Value, ...], sizes: Sizes) -> list[Value]:
    """One value for each layer where the name has `{layer}`, layer by layer."""
    once = [value for value in values if "{layer}" not in value.name]
    layered = [value for value in values if "{layer}" in value.name]
    return once + [
        Value(value.name.format(layer=layer), value.kind, value.axes, value.meaning)
        for layer in range(sizes.decoder_layers)
        for value in layered
    ]
