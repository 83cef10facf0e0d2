"""The graphs' inputs, outputs and axes, in one table that export, verification and service read.

An axis is named where its length is free, and is a number where the model fixes it. `{layer}` stands for each decoder
layer. Standard library only.

    batch    requests                  rows     hypotheses being extended, each of one request
    source   tokens of the longest source, with its end token
    target   tokens of the longest target, with its start token
    past     places of the cache, at least one more than the tokens cached of the longest row
    places   rows of the request that has the most
    candidates   as many of the likeliest next tokens as were asked for
    held, added  rows of two tensors that become one, with held_past and added_past places of the cache
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
        fixed = {"one": 1}
        return tuple(axis if axis in FREE_AXES else fixed.get(axis) or int(getattr(sizes, axis)) for axis in self.axes)


FREE_AXES = (
    "batch",
    "rows",
    "source",
    "target",
    "past",
    "places",
    "candidates",
    "held",
    "added",
    "held_past",
    "added_past",
)
LEAST_WIDTH = 2  # of the axes places and source: one query alone is computed by another kernel, to other last bits
CROSS = ("batch", "heads", "source", "head")
PAST = ("rows", "heads", "past", "head")

SOURCE = (
    Value("source", "int64", ("batch", "source"), "source ids, ending in the end token, padded on the right"),
    Value("source_length", "int64", ("batch",), "tokens of each source that are not padding"),
)
CROSS_MEMORY = (
    Value("cross_key_{layer}", "real", CROSS, "what the decoder layer's queries are compared with"),
    Value("cross_value_{layer}", "real", CROSS, "what they gather"),
)

STEP = (
    (
        Value("token", "int64", ("rows",), "the last token of each row"),
        Value("position", "int64", ("rows",), "how many tokens of each row are cached"),
        Value(
            "cell", "int64", ("batch", "places"), "the row in each place of each source; where there is none, any row"
        ),
        Value("place", "int64", ("rows",), "where each row is in `cell`, counted place by place"),
        Value("top", "int64", ("one",), "how many candidates are wanted"),
        SOURCE[1],
        *CROSS_MEMORY,
        Value("self_key_{layer}", "real", PAST, "keys of the cached tokens; what is past `position` is ignored"),
        Value("self_value_{layer}", "real", PAST, "their values"),
    ),
    (
        Value("logprobs", "float32", ("rows", "target_vocab"), "log-probability of every next token"),
        Value("top_logprobs", "float32", ("rows", "candidates"), "the highest of them, highest first"),
        Value("top_ids", "int64", ("rows", "candidates"), "their tokens; of equals, the lower id first"),
        Value("present_key_{layer}", "real", PAST, "the cache with the key of this token at `position`"),
        Value("present_value_{layer}", "real", PAST, "and with its value"),
    ),
)

GRAPHS: dict[str, tuple[tuple[Value, ...], tuple[Value, ...]]] = {
    "encoder": (SOURCE, CROSS_MEMORY),
    "step": STEP,
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
    "merge": (
        (
            Value("held", "real", ("held", "heads", "held_past", "head"), "rows of a cache or of the memory"),
            Value("added", "real", ("added", "heads", "added_past", "head"), "more of them"),
            Value("index", "int64", ("rows",), "which row comes here, counted through both"),
            Value("length", "int64", ("one",), "the past, or source, that every row is cut or padded to"),
        ),
        (Value("merged", "real", PAST, "the rows picked"),),
    ),
    "fast_encoder": (SOURCE, CROSS_MEMORY),
    "fast_step": STEP,
}  # fmt: skip
REQUIRED = (
    "encoder",
    "step",
    "full",
    "merge",
)  # fast graphs are there where onnxruntime's own operators can compute the model


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
