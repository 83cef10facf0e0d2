"""Inputs, outputs and axes of every graph, in one table that export, verification and service read.

A dynamic axis has a name, a fixed one a size. `{layer}` stands for each decoder layer. Standard library only.

    batch, sources  requests                rows     hypotheses being extended
    source      tokens of the longest source, with its end token; at least LEAST_WIDTH. A row gets the same bits in
                every batch if this is a multiple of WIDTH_UNIT; the largest is max_length rounded up to one
    target      tokens of the longest target, with its start token
    past        slots of the KV cache: more than the largest position, or the step fails
    candidates  k of the top-k next tokens
    held, added   rows of two tensors to merge, of held_past and added_past slots
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a model."""

    source_vocab: int
    target_vocab: int
    d_model: int
    d_ff: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    max_length: int
    head_size: int = 0  # features of a head; 0: d_model / heads

    @property
    def head(self) -> int:
        return self.head_size or self.d_model // self.heads


@dataclass(frozen=True)
class Value:
    """An input or an output of a graph."""

    name: str
    kind: str  # int64, float32, float (the dtype of the variant) or cache (the dtype of its KV caches)
    axes: tuple[str, ...]  # dynamic axes, fields of Sizes, and numbers
    meaning: str
    quantized: bool = False  # only where the KV caches are int8

    def shape(self, sizes: Sizes) -> tuple[str | int, ...]:
        """The axes, fixed ones as numbers."""

        def size(axis: str) -> str | int:
            if axis in FREE_AXES:
                return axis
            return int(axis) if axis.isdecimal() else int(getattr(sizes, axis))

        return tuple(map(size, self.axes))


FREE_AXES = (
    "batch",
    "sources",
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
LEAST_WIDTH = 2  # of the axis source: for a single query another kernel runs, which rounds differently
WIDTH_UNIT = 4  # standard operators compute the last columns of other widths by a kernel that rounds differently
ENCODED = ("batch", "heads", "source", "head")
CROSS = ("rows", "heads", "source", "head")
PAST = ("rows", "heads", "past", "head")

SOURCE = (
    Value("source", "int64", ("batch", "source"), "source ids, ending in the end token, padded on the right"),
    Value("source_length", "int64", ("batch",), "tokens of each source without padding"),
)
ENCODER = (
    SOURCE,
    (
        Value("cross_key_{layer}", "cache", ENCODED, "keys of the decoder layer's cross-attention"),
        Value("cross_value_{layer}", "cache", ENCODED, "and its values"),
    ),
)

STEP = (
    (
        Value("token", "int64", ("rows",), "the last token of each row"),
        Value("position", "int64", ("rows",), "the number of cached tokens of each row; less than `past`"),
        Value("top", "int64", ("1",), "k of the top-k candidates"),
        Value("source_length", "int64", ("rows",), "tokens of each row's source"),
        Value("cross_key_{layer}", "cache", CROSS, "the encoder's output for each row's source"),
        Value("cross_value_{layer}", "cache", CROSS, "and its values"),
        Value("self_key_{layer}", "cache", PAST, "keys of the cached tokens; slots from `position` on are ignored"),
        Value("self_value_{layer}", "cache", PAST, "their values"),
    ),
    (
        Value("logprobs", "float32", ("rows", "target_vocab"), "log-probability of every next token"),
        Value("top_logprobs", "float32", ("rows", "candidates"), "the k highest, in descending order"),
        Value("top_ids", "int64", ("rows", "candidates"), "their token ids; equal ones by ascending id"),
        Value("present_key_{layer}", "cache", PAST, "the cache with the key of this token at `position`"),
        Value("present_value_{layer}", "cache", PAST, "and with its value"),
    ),
)
KERNEL_ENCODER = (
    SOURCE,
    (
        *ENCODER[1],
        Value(
            "cross_scale_{layer}", "float32", ("batch", "2", "heads", "source"), "their scales: keys', values'", True
        ),
    ),
)
KERNEL_CROSS = ("sources", "heads", "source", "head")
KERNEL_STEP = (
    (
        *STEP[0][:3],
        Value("whole", "int64", ("rows",), "0 where `logprobs` of the row may be left unwritten, else 1"),
        Value("source_row", "int64", ("rows",), "the source of each row"),
        Value("source_length", "int64", ("sources",), "tokens of each source"),
        Value("cross_key_{layer}", "cache", KERNEL_CROSS, "the encoder's output for each source"),
        Value("cross_value_{layer}", "cache", KERNEL_CROSS, "and its values"),
        Value("cross_scale_{layer}", "float32", ("sources", "2", "heads", "source"), "and their scales", True),
        *STEP[0][6:],
        Value("self_scale_{layer}", "float32", ("rows", "2", "heads", "past"), "their scales: keys', values'", True),
    ),
    (
        *STEP[1],
        Value("present_scale_{layer}", "float32", ("rows", "2", "heads", "past"), "and with their scales", True),
    ),
)

GRAPHS: dict[str, tuple[tuple[Value, ...], tuple[Value, ...]]] = {
    "encoder": ENCODER,
    "step": STEP,
    "full": (
        (*SOURCE, Value("target", "int64", ("batch", "target"), "target ids from the start token on, padded")),
        (
            Value("logprobs", "float32", ("batch", "target", "target_vocab"), "of the token after each position"),
            Value(
                "encoder_attention",
                "float",
                ("batch", "encoder_layers", "heads", "source", "source"),
                "attention weights of the encoder",
            ),
            Value(
                "decoder_attention",
                "float",
                ("batch", "decoder_layers", "heads", "target", "target"),
                "attention weights of the decoder over its own tokens",
            ),
            Value(
                "cross_attention",
                "float",
                ("batch", "decoder_layers", "heads", "target", "source"),
                "attention weights of the decoder over the source",
            ),
        ),
    ),
    "merge": (
        (
            Value("held", "float", ("held", "heads", "held_past", "head"), "rows of a KV cache"),
            Value("added", "float", ("added", "heads", "added_past", "head"), "more rows"),
            Value("index", "int64", ("rows",), "the row to take, counted over held, then added"),
            Value("length", "int64", ("1",), "the slots that every row is cut or padded to"),
        ),
        (Value("merged", "float", PAST, "the rows taken"),),
    ),
    "kernel_encoder": KERNEL_ENCODER,
    "kernel_step": KERNEL_STEP,
}
REQUIRED = ("encoder", "step", "full", "merge")  # the others are optional: see export.graphs.kernels.has_kernels


def padded_width(source_tokens: int) -> int:
    """The width of a batch of sources, from the tokens of its longest."""
    return -(-max(source_tokens, LEAST_WIDTH) // WIDTH_UNIT) * WIDTH_UNIT


def inputs(graph: str, sizes: Sizes, quantized: bool = False) -> list[Value]:
    """`quantized`: of a variant that has int8 KV caches."""
    return _spread(GRAPHS[graph][0], sizes, quantized)


def outputs(graph: str, sizes: Sizes, quantized: bool = False) -> list[Value]:
    return _spread(GRAPHS[graph][1], sizes, quantized)


def _spread(values: tuple[Value, ...], sizes: Sizes, quantized: bool) -> list[Value]:
    """A value per layer where the name has `{layer}`."""
    used = [value for value in values if quantized or not value.quantized]
    once = [value for value in used if "{layer}" not in value.name]
    layered = [value for value in used if "{layer}" in value.name]
    return once + [
        dataclasses.replace(value, name=value.name.format(layer=layer))
        for layer in range(sizes.decoder_layers)
        for value in layered
    ]
