"""One case of each operator: a session, what it is fed, and what the reference says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort

from tests.kernels import reference
from tests.kernels.graphs import FLOAT, INT8, INT64, Weights, pack, session
from tests.kernels.reference import Array

DECODER = ("qkv", "self_out", "queries", "cross_out", "widen", "narrow")
ENCODER = ("qkv", "out", "widen", "narrow")


@dataclass
class Case:
    session: ort.InferenceSession
    feeds: dict[str, Array]
    expected: list[Array]
    int8: bool = False

    def run(self) -> list[Array]:
        found: list[Array] = self.session.run(None, self.feeds)
        return found

    def check(self, tolerance: float = 2e-6) -> None:
        """Every output near the reference. In int8 a rounding may fall the other way: one step off, in few rows."""
        for found, expected in zip(self.run(), self.expected, strict=True):
            away = np.abs(found.astype(np.float64) - expected).reshape(len(found), -1).max(-1, initial=0)
            off = away > tolerance * max(1.0, np.abs(expected).max(initial=0))
            step = 1 if found.dtype == np.int8 else 0.02
            assert off.sum() <= (max(1, len(off) // 16) if self.int8 else 0)
            assert away.max(initial=0) <= step


def shapes(width: int, wide: int, inner: int = 0, gated: bool = False) -> dict[str, tuple[int, int]]:
    """`inner`: features of all heads; 0: as many as the model's."""
    inner = inner or width
    out = dict.fromkeys(("self_out", "cross_out", "out"), (inner, width))
    widen = (width, 2 * wide if gated else wide)
    return {"qkv": (width, 3 * inner), "queries": (width, inner), **out, "widen": widen, "narrow": (wide, width)}


def relative(weights: Weights, heads: int, head: int, largest: int, later: bool) -> tuple[dict[str, int], Array]:
    """The attributes of a layer of T5's, and its table of relative positions, which is its last input."""
    table = weights.random.standard_normal((heads, (2 if later else 1) * largest + 1)).astype(np.float32)
    weights.initializers.append(table)
    return {"rms": 1, "head": head, "relative": largest}, table


def cache(random: np.random.Generator, rows: int, heads: int, slots: int, d: int, int8: bool) -> list[Array]:
    sides = [random.standard_normal((rows, heads, slots, d)).astype(np.float32) for _ in range(2)]
    if not int8:
        return sides
    quantized = [reference.quantize(side) for side in sides]
    return [*(values for values, _ in quantized), np.stack([scale[..., 0] for _, scale in quantized], 1)]


def decoder(
    *,
    int8: bool = True,
    width: int = 32,
    heads: int = 2,
    wide: int = 48,
    rows: int = 5,
    past: int = 7,
    slots: int = 6,
    sources: int = 3,
    pre_norm: bool = True,
    activation: str = "relu",
    threads: int = 1,
    seed: int = 0,
    head: int = 0,
) -> Case:
    """With `head`, its size, a layer of T5's: RMSNorm and relative positions."""
    weights = Weights(seed, int8)
    random, d = weights.random, head or width // heads
    sizes = shapes(width, wide, heads * d, activation.startswith("gated_"))
    w: dict[str, Any] = {name: weights.product(*sizes[name]) for name in DECODER}
    w |= {name: weights.norm(width, rms=head > 0) for name in ("self_norm", "cross_norm", "feed_norm")}
    more, table = relative(weights, heads, d, 4, later=False) if head else ({}, None)
    x = random.standard_normal((rows, width)).astype(np.float32)
    position, source_row = random.integers(0, past, rows), random.integers(0, sources, rows)
    source_length = random.integers(1, slots + 1, sources)
    self_cache = cache(random, rows, heads, past, d, int8)
    cross_cache = cache(random, sources, heads, slots, d, int8)
    names = ("key", "value", "scale")[: len(self_cache)]
    feeds = {"x": x, "position": position, "source_row": source_row, "source_length": source_length}
    feeds |= {f"self_{name}": part for name, part in zip(names, self_cache, strict=True)}
    feeds |= {f"cross_{name}": part for name, part in zip(names, cross_cache, strict=True)}
    kind = INT8 if int8 else FLOAT
    outputs = {"y": FLOAT, "present_key": kind, "present_value": kind} | ({"present_scale": FLOAT} if int8 else {})
    attributes: dict[str, Any] = {
        "heads": heads,
        "pre_norm": int(pre_norm),
        "activation": activation,
        "epsilon": 1e-5,
        "int8": int(int8),
    }
    attributes |= more
    made = session("DecoderLayer", feeds, weights.initializers, outputs, attributes, threads)
    y, present = reference.decoder_layer(
        x, position, source_row, source_length, self_cache, cross_cache, w, heads, pre_norm, activation, table
    )
    return Case(made, feeds, [y, *present], int8)


def encoder(
    *,
    int8: bool = True,
    width: int = 32,
    heads: int = 2,
    wide: int = 48,
    tokens: tuple[int, ...] = (3, 7, 1),
    ended: int = 0,
    pre_norm: bool = True,
    activation: str = "relu",
    threads: int = 1,
    seed: int = 1,
    head: int = 0,
) -> Case:
    """`ended`: tokens at a source's end that are not attended. With `head`, its size, a layer of T5's."""
    weights, d = Weights(seed, int8), head or width // heads
    sizes = shapes(width, wide, heads * d, activation.startswith("gated_"))
    w: dict[str, Any] = {name: weights.product(*sizes[name]) for name in ENCODER}
    w |= {name: weights.norm(width, rms=head > 0) for name in ("attention_norm", "feed_norm")}
    more, table = relative(weights, heads, d, 4, later=True) if head else ({}, None)
    laid_out = np.array(tokens)
    feeds = {"x": weights.random.standard_normal((sum(tokens), width)).astype(np.float32)}
    feeds |= {"length": laid_out - ended, "source_length": laid_out}
    attributes: dict[str, Any] = {
        "heads": heads,
        "pre_norm": int(pre_norm),
        "activation": activation,
        "epsilon": 1e-5,
        "int8": int(int8),
    }
    attributes |= more
    made = session("EncoderLayer", feeds, weights.initializers, {"y": FLOAT}, attributes, threads)
    y = reference.encoder_layer(feeds["x"], feeds["length"], laid_out, w, heads, pre_norm, activation, table)
    return Case(made, feeds, [y], int8)


def cross(
    *, int8: bool = True, width: int = 32, heads: int = 2, tokens: tuple[int, ...] = (3, 5, 1), threads: int = 1
) -> Case:
    weights = Weights(2, int8)
    product, slots = weights.product(width, 2 * width), max(tokens) + 1
    memory = weights.random.standard_normal((sum(tokens), width)).astype(np.float32)
    feeds = {"memory": memory, "source": np.zeros((len(tokens), slots), np.int64), "source_length": np.array(tokens)}
    kind = INT8 if int8 else FLOAT
    outputs = {"key": kind, "value": kind} | ({"scale": FLOAT} if int8 else {})
    made = session(
        "CrossKeysValues", feeds, weights.initializers, outputs, {"heads": heads, "int8": int(int8)}, threads
    )
    return Case(made, feeds, reference.cross_keys_values(memory, (len(tokens), slots), tokens, product, heads), int8)


def vocabulary(
    *,
    int8: bool = True,
    width: int = 32,
    words: int = 100,
    rows: int = 3,
    top: int = 5,
    norm: bool = True,
    threads: int = 1,
    bias: dict[int, float] | None = None,
) -> Case:
    weights = Weights(3, int8)
    product = weights.product(width, words)
    for word, value in (bias or {}).items():
        product.bias[word] = weights.initializers[-1][word] = value
    if not int8:
        weights.initializers[0] = np.ascontiguousarray(product.weight.T)
    normed = weights.norm(width)
    x = weights.random.standard_normal((rows, width)).astype(np.float32)
    after = {"top": np.array([top]), "whole": np.ones(rows, np.int64)}
    outputs = {"top_logprobs": FLOAT, "top_ids": INT64, "logprobs": FLOAT}
    attributes = {"norm": int(norm), "epsilon": 1e-5, "int8": int(int8), "vocabulary": words}
    made = session("Vocabulary", {"x": x}, weights.initializers, outputs, attributes, threads, after)
    logprobs = reference.log_softmax(product(normed(x) if norm else x))
    ids = reference.top_k(logprobs, min(top, words))
    return Case(made, {"x": x, **after}, [np.take_along_axis(logprobs, ids, 1), ids, logprobs], int8)


def embed(*, source: bool, int8: bool = True, width: int = 32, words: int = 11, norm: bool = False) -> Case:
    """EmbedSource of a batch with padding, or EmbedTarget of its first tokens."""
    weights = Weights(4, int8)
    random = weights.random
    if int8:
        table = random.integers(-63, 64, (words, width)).astype(np.int8)
        scale = random.random((words, 1), dtype=np.float32)
        stored = pack(table.T)
    else:
        table, scale = random.standard_normal((words, width)).astype(np.float32), np.array([1.5], np.float32)
        stored = table
    positions = random.standard_normal((9, width)).astype(np.float32)
    normed = weights.norm(width)
    constants = [stored, scale, positions, *weights.initializers]
    tokens, lengths = random.integers(0, words, (4, 6)), np.array([6, 1, 0, 3])
    if source:
        feeds = {"source": tokens, "source_length": lengths}
        ids = np.concatenate([row[:n] for row, n in zip(tokens, lengths, strict=True)])
        places = np.concatenate([np.arange(n) for n in lengths])
    else:
        feeds = {"token": tokens[:, 0], "position": np.array([3, 0, 8, 2])}
        ids, places = feeds["token"], feeds["position"]
    attributes = {"norm": int(norm), "epsilon": 1e-5, "int8": int(int8)}
    name = "EmbedSource" if source else "EmbedTarget"
    made = session(name, feeds, constants, {"y": FLOAT}, attributes)
    y = table[ids] * (scale[ids] if int8 else scale) + positions[places]
    return Case(made, feeds, [normed(y) if norm else y])
