"""Attention weights as answered: chosen, averaged, counted, encoded; and the alignment that follows from them.

Pure functions.    L layers   H heads   T target   S source
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from attendant.export.bundle import Sizes
from attendant.service.engine.tasks import AlignmentChoice, Array, AttentionChoice, AttentionWeights, Ids
from attendant.service.errors import InvalidFieldError

BASE64_VALUES = 3 * 2**16  # encoded at once; a multiple of 3, so that parts can be joined
HALF = 65504  # the largest float16
DECIMALS = 6  # of a number in JSON


def layers_of(kind: str, sizes: Sizes) -> int:
    return sizes.encoder_layers if kind == "encoder" else sizes.decoder_layers


def count_values(choice: AttentionChoice, sizes: Sizes, source: int, target: int, read: int) -> int:
    """How many weights are answered for `source` tokens, `target` steps, and `read` tokens that the decoder reads."""
    total = 0
    for kind in choice.kinds:
        layers = layers_of(kind, sizes) if choice.layers is None else len(choice.layers)
        heads = sizes.heads if choice.heads is None else len(choice.heads)
        queries, keys = {"encoder": (source, source), "decoder": (target, read), "cross": (target, source)}[kind]
        averaged = choice.average
        total += (
            (1 if averaged in ("layers", "both") else layers)
            * (1 if averaged in ("heads", "both") else heads)
            * queries
            * keys
        )
    return total


def check_value_count(count: int, limit: int) -> None:
    if count > limit:
        raise InvalidFieldError(
            f"this would answer {count:,} attention weights, and at most {limit:,} are; choose fewer kinds in "
            "attention, fewer layers or heads, or an average.",
            "attention",
        )


def first_repeated(found: Sequence[int]) -> int | None:
    """The first number that is there more than once."""
    return None if len(set(found)) == len(found) else next(n for i, n in enumerate(found) if n in found[:i])


def check_choices(chosen: AttentionChoice, aligned: AlignmentChoice) -> None:
    """Each layer and head once: the memory that weights take is bounded by the model's own layers and heads."""
    for field, found in (("layers", chosen.layers), ("heads", chosen.heads), ("alignment_heads", aligned.heads)):
        twice = first_repeated(found or ())
        if twice is not None:
            raise InvalidFieldError(f"{field} names {twice} more than once; name each once.", field)


def choose(kind: str, weights: Array, choice: AttentionChoice) -> AttentionWeights:
    """(L, H, queries, keys) -> the layers and heads that are chosen, averaged where that is asked for.

    What is averaged is copied one layer or head at a time: never more memory than the answer's, and one layer or head.
    """
    layers = tuple(range(weights.shape[0])) if choice.layers is None else choice.layers
    heads = tuple(range(weights.shape[1])) if choice.heads is None else choice.heads
    values: Array
    if choice.average == "none":
        values = weights[np.ix_(layers, heads)].astype(np.float32, copy=False)
    elif choice.average == "heads":
        values = np.stack([_mean(weights[layer], heads) for layer in layers])[:, None]
    elif choice.average == "layers":
        values = np.stack([_mean(weights[:, head], layers) for head in heads])[None]
    else:
        total = np.zeros(weights.shape[2:], np.float32)
        for layer in layers:
            total += _mean(weights[layer], heads)
        values = (total / len(layers))[None, None]
    return AttentionWeights(kind, layers, heads, values)


def _mean(weights: Array, chosen: Ids) -> Array:
    """(N, queries, keys) -> the mean of those that are chosen, in f32."""
    found: Array = weights[list(chosen)].mean(axis=0, dtype=np.float32)
    return found


def align(cross: Array, choice: AlignmentChoice, columns: Ids, rows: int) -> tuple[tuple[int, int], ...]:
    """Aligned positions (source, target) by cross-attention weights (L, H, T, S); of equal weights the first counts.

    Only source positions in `columns` and the first `rows` steps of the target are aligned.
    """
    weights = cross[choice.layer][list(choice.heads)].mean(axis=0, dtype=np.float64)[:rows, list(columns)]
    if not weights.size:
        return ()
    best_source, best_target = weights.argmax(axis=1), weights.argmax(axis=0)
    return tuple(
        (columns[source], target)
        for target, source in enumerate(best_source.tolist())
        if choice.method == "argmax" or best_target[source] == target
    )


def encode_values(values: Array, encoding: str, check: Callable[[], None] = lambda: None) -> Iterator[bytes]:
    """Weights as JSON, in parts: nested lists of numbers, or base64 of float16 or of round(255 x) in uint8, in C order.

    JSON is written a row at a time, so that other Python threads can run in between; `check` is called before each.
    """
    if encoding != "json":
        yield b'"'
        flat = values.reshape(-1)
        for start in range(0, flat.size, BASE64_VALUES):
            check()
            part = flat[start : start + BASE64_VALUES]
            raw = (
                np.clip(part, -HALF, HALF).astype("<f2")
                if encoding == "float16"
                else np.rint(part * 255).astype(np.uint8)
            )
            yield base64.b64encode(raw.tobytes())
        yield b'"'
    elif values.ndim > 2:
        for place, inner in enumerate(values):
            yield b"," if place else b"["
            yield from encode_values(inner, encoding, check)
        yield b"]"
    else:
        yield b"[" + b",".join(_encode_row(row, check) for row in values) + b"]"


def _encode_row(row: Array, check: Callable[[], None]) -> bytes:
    check()
    return json.dumps(np.round(row.astype(np.float64), DECIMALS).tolist(), separators=(",", ":")).encode()
