"""The graphs' inputs, outputs and axes, in one table that export, verification and service read.

An axis is named where its length is free, and is a number where the model fixes it. `{layer}` stands for each decoder
layer. Standard library only.

    batch    requests                  rows     hypotheses being extended
    source   tokens of the longest source, with its end token
    target   tokens of the longest target, with its start token
    past     places of the cache, at least one more than the tokens cached of the longest row
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
    kind: str  # int64, float32, real: the precision of the variant, or cache: that of its caches
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
    "candidates",
    "held",
    "added",
    "held_past",
    "added_past",
)
LEAST_WIDTH = 2  # of the axis source: one query alone is computed by another kernel, to other last bits
ENCODED = ("batch", "heads", "source", "head")
MEMORY = ("rows", "heads", "source", "head")
PAST = ("rows", "heads", "past", "head")

SOURCE = (
    Value("source", "int64", ("batch", "source"), "source ids, ending in the end token, padded on the right"),
    Value("source_length", "int64", ("batch",), "tokens of each source that are not padding"),
)
ENCODER = (
    SOURCE,
    (
        Value("cross_key_{layer}", "cache", ENCODED, "what the decoder layer's queries are compared with"),
        Value("cross_value_{layer}", "cache", ENCODED, "what they gather"),
    ),
)

STEP = (
    (
        Value("token", "int64", ("rows",), "the last token of each row"),
        Value("position", "int64", ("rows",), "how many tokens of each row are cached"),
        Value("top", "int64", ("one",), "how many candidates are wanted"),
        Value("source_length", "int64", ("rows",), "tokens of each row's source"),
        Value("cross_key_{layer}", "cache", MEMORY, "the encoder's, of each row's source"),
        Value("cross_value_{layer}", "cache", MEMORY, "and its values"),
        Value("self_key_{layer}", "cache", PAST, "keys of the cached tokens; what is past `position` is ignored"),
        Value("self_value_{layer}", "cache", PAST, "their values"),
    ),
    (
        Value("logprobs", "float32", ("rows", "target_vocab"), "log-probability of every next token"),
        Value("top_logprobs", "float32", ("rows", "candidates"), "the highest of them, highest first"),
        Value("top_ids", "int64", ("rows", "candidates"), "their tokens; of equals, the lower id first"),
        Value("present_key_{layer}", "cache", PAST, "the cache with the key of this token at `position`"),
        Value("present_value_{layer}", "cache", PAST, "and with its value"),
    ),
)
KEPT = (
    Value("kept_key_{layer}", "cache", MEMORY, "cross_key as it came: where both are one buffer, nothing is copied"),
    Value("kept_value_{layer}", "cache", MEMORY, "cross_value likewise"),
)

GRAPHS: dict[str, tuple[tuple[Value, ...], tuple[Value, ...]]] = {
    "encoder": ENCODER,
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
    "fast_encoder": ENCODER,
    "fast_step": (STEP[0], (*STEP[1], *KEPT)),
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
