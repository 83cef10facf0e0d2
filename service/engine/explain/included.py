"""Values that a pass computes on its way, as answered: which there are, how many, and out of a run's outputs.

L layers   H heads   S source   T steps of the target   R tokens that the decoder reads   D d_model   d = D / H
"""

from __future__ import annotations

import numpy as np

from attendant.export.bundle import Sizes
from attendant.service.engine.explain.anchors import SIDES, Sublayer
from attendant.service.engine.explain.attention import layers_of
from attendant.service.engine.explain.counts import MOST_DISTANCES
from attendant.service.engine.explain.inside import Inside
from attendant.service.engine.tasks import Array, AttentionChoice, IncludedValues

PER_HEAD = {
    "qkv": ("query", "key", "value", "vector"),
    "scores": ("scores",),
    "sums": ("sums",),
    "projected": ("projected",),
}
ROWS = {"encoder": ("source", "source"), "decoder": ("target", "decoder_inputs"), "cross": ("target", "source")}
STACKS = {"encoder": ("encoder", "encoder_feed_forward"), "decoder": ("decoder", "cross", "decoder_feed_forward")}


def values_of(include: tuple[str, ...], choice: AttentionChoice, sizes: Sizes, inside: Inside) -> list[str]:
    """The outputs that a run has to give for it."""
    found = [
        value
        for name in _per_head(include)
        for kind in choice.kinds
        for layer in _layers(kind, choice, sizes)
        for value in _values(inside, name, (kind, layer))
    ]
    if "bias" in include:
        found += _tables(inside).values()
    if "residual" in include:
        found += [*inside.stream.values(), *inside.anchors.streams.values(), *inside.outputs.values()]
    if "embeddings" in include:
        found += [each for side in inside.anchors.embedded.values() for each in (side.tokens, side.positions)]
    return list(dict.fromkeys(found))


def collect(
    include: tuple[str, ...],
    choice: AttentionChoice,
    sizes: Sizes,
    inside: Inside,
    outputs: dict[str, Array],
    source: int,
    dropped: int,
) -> tuple[IncludedValues, ...]:
    """The values of one run; `source` tokens without padding, the first `dropped` rows of the target are no steps."""
    found = []
    for name in _per_head(include):
        for kind in choice.kinds:
            layers = _layers(kind, choice, sizes)
            heads = tuple(range(sizes.heads)) if choice.heads is None else choice.heads
            if not _values(inside, name, (kind, layers[0])):
                continue
            stacked = np.stack([_of_heads(name, inside, outputs, (kind, layer), heads) for layer in layers])
            queries, keys = ROWS[kind]
            axes = {"key": (keys,), "value": (keys,), "vector": (), "scores": (queries, keys)}.get(name, (queries,))
            for axis, of in enumerate(axes, start=2):
                cut = slice(source) if of == "source" else slice(dropped if of == "target" else 0, None)
                stacked = stacked[(slice(None),) * axis + (cut,)]
            last = () if name == "scores" else ("features",)
            found.append(IncludedValues(name, kind, ("layers", "heads", *axes, *last), stacked, (), layers, heads))
    if "bias" in include:
        found += [_bias(stack, outputs[table]) for stack, table in _tables(inside).items()]
    if "residual" in include:
        found += [each for stack in STACKS for each in _residual(stack, sizes, inside, outputs, source)]
    if "embeddings" in include:
        for side, embedded in inside.anchors.embedded.items():
            length, rows = (source, "source") if side == SIDES[0] else (None, "decoder_inputs")
            for name, value in (("tokens", outputs[embedded.tokens][0]), ("positions", outputs[embedded.positions])):
                found.append(IncludedValues(name, side, (rows, "features"), value[:length]))
    return tuple(found)


def _per_head(include: tuple[str, ...]) -> list[str]:
    return [name for group in include for name in PER_HEAD.get(group, ())]


def _layers(kind: str, choice: AttentionChoice, sizes: Sizes) -> tuple[int, ...]:
    return tuple(range(layers_of(kind, sizes))) if choice.layers is None else choice.layers


def _values(inside: Inside, name: str, of: Sublayer) -> list[str]:
    """The outputs that give it; none where this model has no such thing."""
    found = inside.anchors.attention[of]
    if name == "projected":
        return [inside.sums[of], found.projection] if found.projection else []
    value = inside.sums[of] if name == "sums" else str(getattr(found, name))
    return [value] if value else []


def _of_heads(name: str, inside: Inside, outputs: dict[str, Array], of: Sublayer, heads: tuple[int, ...]) -> Array:
    value, *weights = (outputs[each] for each in _values(inside, name, of))
    if name == "vector":  # (H, 1, d, 1)
        return value[list(heads), 0, :, 0]
    chosen: Array = value[0, list(heads)]
    if weights:  # W_O, (H d, D): each head has its rows
        parts = weights[0].reshape(value.shape[1], value.shape[3], -1)
        chosen = chosen.astype(np.float32) @ parts[list(heads)].astype(np.float32)
    return chosen


def _tables(inside: Inside) -> dict[str, str]:
    """The biases of relative positions, by stack, which all its layers share."""
    tables = {stack: inside.anchors.attention[stack, 0].bias for stack in STACKS}
    return {stack: table for stack, table in tables.items() if table}


def _bias(stack: str, table: Array) -> IncludedValues:
    """(H, distances): key's position - query's, from -M to M in the encoder, to 0 in the decoder; cut at the most."""
    largest = table.shape[1] // 2 if stack == "encoder" else table.shape[1] - 1
    distances = range(max(-largest, -MOST_DISTANCES), min(table.shape[1] - largest, MOST_DISTANCES + 1))
    places = tuple(str(distance) for distance in distances)
    values = table[:, largest + distances.start : largest + distances.stop]
    return IncludedValues("bias", stack, ("heads", "distances"), values, places, (), tuple(range(len(table))))


def _residual(
    stack: str, sizes: Sizes, inside: Inside, outputs: dict[str, Array], source: int
) -> tuple[IncludedValues, IncludedValues]:
    """x before the first sub-layer and after each, and what each adds to it."""
    layers = sizes.encoder_layers if stack == "encoder" else sizes.decoder_layers
    names = [(kind, layer) for layer in range(layers) for kind in STACKS[stack]]
    rows, length = ("source", source) if stack == "encoder" else ("decoder_inputs", None)
    stream = [inside.stream[stack], *(inside.anchors.streams[name] for name in names)]
    places = tuple(f"{kind} {layer}" for kind, layer in names)
    axes = ("places", rows, "features")
    x = np.stack([outputs[value][0, :length] for value in stream])
    added = np.stack([outputs[inside.outputs[name]][0, :length] for name in names])
    return (
        IncludedValues("stream", stack, axes, x, ("embedding", *places)),
        IncludedValues("output", stack, axes, added, places),
    )
