"""Attention weights as answered: chosen, averaged, counted, encoded; and the alignment that follows from them.

Pure functions.    L layers   H heads   T target   S source
"""

from __future__ import annotations

import base64
import json

import numpy as np

from export.bundle import Sizes
from service.engine.tasks import AlignmentChoice, Array, AttentionChoice, AttentionWeights, Ids
from service.errors import InvalidFieldError

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


def choose(kind: str, weights: Array, choice: AttentionChoice) -> AttentionWeights:
    """(L, H, queries, keys) -> the layers and heads that are chosen, averaged where that is asked for."""
    layers = tuple(range(weights.shape[0])) if choice.layers is None else choice.layers
    heads = tuple(range(weights.shape[1])) if choice.heads is None else choice.heads
    values = weights[np.ix_(layers, heads)].astype(np.float32)
    if choice.average in ("layers", "both"):
        values = values.mean(axis=0, keepdims=True)
    if choice.average in ("heads", "both"):
        values = values.mean(axis=1, keepdims=True)
    return AttentionWeights(kind, layers, heads, values)


def align(cross: Array, choice: AlignmentChoice, columns: Ids, rows: int) -> tuple[tuple[int, int], ...]:
    """Aligned positions (source, target) by cross-attention weights (L, H, T, S); of equal weights the first counts.

    Only source positions in `columns` and the first `rows` steps of the target are aligned.
    """
    weights = cross[choice.layer][list(choice.heads)].astype(np.float64).mean(axis=0)[:rows, list(columns)]
    if not weights.size:
        return ()
    best_source, best_target = weights.argmax(axis=1), weights.argmax(axis=0)
    return tuple(
        (columns[source], target)
        for target, source in enumerate(best_source.tolist())
        if choice.method == "argmax" or best_target[source] == target
    )


def encode_values(values: Array, encoding: str) -> bytes:
    """Weights as JSON: nested lists of numbers, or base64 of float16 or of round(255 x) in uint8, in C order.

    JSON is written a row at a time, so that other Python threads can run in between.
    """
    if encoding != "json":
        raw = values.astype("<f2") if encoding == "float16" else np.rint(values * 255).astype(np.uint8)
        return b'"' + base64.b64encode(raw.tobytes()) + b'"'
    if values.ndim > 1:
        return b"[" + b",".join(encode_values(part, encoding) for part in values) + b"]"
    return json.dumps(np.round(values.astype(np.float64), DECIMALS).tolist(), separators=(",", ":")).encode()
