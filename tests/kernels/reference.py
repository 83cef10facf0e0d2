"""The operators in numpy, from their definitions, in double precision. R rows, H heads, d head size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass
class Product:
    """Weights (K, N) with bias, in f32, or in int8 with a scale for each column."""

    weight: Array
    bias: Array
    scale: Array | None = None  # int8: weight holds integers

    def __call__(self, x: Array) -> Array:
        if self.scale is None:
            return x.astype(np.float64) @ self.weight + self.bias
        q, scale = quantize(x)
        sums = q.astype(np.int64) @ self.weight.astype(np.int64)
        return sums * (scale * self.scale) + self.bias


@dataclass
class Norm:
    gamma: Array
    beta: Array
    epsilon: float = 1e-5
    rms: bool = False

    def __call__(self, x: Array) -> Array:
        x = x.astype(np.float64)
        centered = x if self.rms else x - x.mean(-1, keepdims=True)
        return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + self.epsilon) * self.gamma + self.beta


def quantize(x: Array) -> tuple[Array, Array]:
    """int8 with one scale for each last axis: values and scales (..., 1)."""
    x = x.astype(np.float32)
    most = np.maximum(np.abs(x).max(-1, keepdims=True), np.float32(1e-30))
    return np.rint(x * (np.float32(127) / most)).astype(np.int8), most / np.float32(127)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gated_gelu": lambda x: gated(x, lambda y: y / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))),
    "gated_silu": lambda x: gated(x, lambda y: y / (1 + np.exp(-y))),
}


def gated(x: Array, activation: Callable[[Array], Array]) -> Array:
    wide, gate = np.split(x, 2, axis=-1)
    return activation(wide) * gate


def bias_of(table: Array | None, queries: Array, keys: int) -> Array | float:
    """(H, Q, K) of a table (H, distances), whose first column is of the most negative distance, -largest, and whose
    columns end at 0 or at +largest; queries (Q,) are positions."""
    if table is None:
        return 0.0
    largest = 4
    distance = np.arange(keys) - queries[:, None]
    return table[:, np.clip(distance + largest, 0, table.shape[1] - 1)]


def attention(query: Array, key: Array, value: Array, bias: Array | float = 0.0) -> Array:
    """(H, Q, d), (H, K, d) -> (H, Q, d); the bias (H, Q, K) is added to the scores"""
    if key.shape[1] == 0:
        return np.zeros_like(query)
    return softmax(query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1]) + bias) @ value


def sublayer(x: Array, norm: Norm, pre_norm: bool, f: Callable[[Array], Array]) -> Array:
    return x + f(norm(x)) if pre_norm else norm(x + f(x))


def heads_of(x: Array, heads: int) -> Array:
    """(T, H * d) -> (H, T, d)"""
    return x.reshape(len(x), heads, -1).swapaxes(0, 1)


def joined(x: Array) -> Array:
    """(H, T, d) -> (T, H * d)"""
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)


def encoder_layer(
    x: Array,
    length: Array,
    laid_out: Array,
    w: dict[str, Any],
    heads: int,
    pre_norm: bool,
    activation: str,
    table: Array | None = None,
) -> Array:
    def attend(y: Array) -> Array:
        wide, parts, start = w["qkv"](y), [], 0
        for attended, count in zip(length, laid_out, strict=True):
            q, k, v = (heads_of(part, heads) for part in np.split(wide[start : start + count], 3, axis=1))
            bias = bias_of(table, np.arange(count), attended)
            parts.append(joined(attention(q, k[:, :attended], v[:, :attended], bias)))
            start += count
        return w["out"](np.concatenate(parts))

    x = sublayer(x.astype(np.float64), w["attention_norm"], pre_norm, attend)
    return sublayer(x, w["feed_norm"], pre_norm, lambda y: w["narrow"](ACTIVATIONS[activation](w["widen"](y))))


def cross_keys_values(
    memory: Array, shape: tuple[int, int], length: Array, product: Product, heads: int
) -> list[Array]:
    """key, value (B, H, S, d) in f32, and in int8 also scale (B, 2, H, S)."""
    batch, slots = shape
    wide = product(memory)
    d = wide.shape[1] // 2 // heads
    found = np.zeros((2, batch, heads, slots, d))
    start = 0
    for b, count in enumerate(length):
        for side, part in enumerate(np.split(wide[start : start + count], 2, axis=1)):
            found[side, b, :, :count] = heads_of(part, heads)
        start += count
    if product.scale is None:
        return [found[0], found[1]]
    q, scale = quantize(found)
    mask = np.arange(slots)[None, None, None] < np.asarray(length)[:, None, None, None]
    return [q[0], q[1], np.where(mask, scale[..., 0].swapaxes(0, 1), 0)]


def stored(cache: list[Array], row: int, length: int) -> tuple[Array, Array]:
    """A row's keys and values (H, length, d) in f64."""
    key, value = (side[row, :, :length].astype(np.float64) for side in cache[:2])
    if len(cache) == 2:
        return key, value
    return key * cache[2][row, 0, :, :length, None], value * cache[2][row, 1, :, :length, None]


def decoder_layer(
    x: Array,
    position: Array,
    source_row: Array,
    source_length: Array,
    self_cache: list[Array],
    cross_cache: list[Array],
    w: dict[str, Any],
    heads: int,
    pre_norm: bool,
    activation: str,
    table: Array | None = None,
) -> tuple[Array, list[Array]]:
    cache = [part.copy() for part in self_cache]

    def self_attention(y: Array) -> Array:
        rows = []
        for row, wide in enumerate(w["qkv"](y)):
            q, *kv = (part.reshape(heads, -1) for part in np.split(wide, 3))
            for side, part in enumerate(kv):
                if len(cache) == 3:
                    values, scale = quantize(part)
                    cache[side][row, :, position[row]] = values
                    cache[2][row, side, :, position[row]] = scale[:, 0]
                else:
                    cache[side][row, :, position[row]] = part
            bias = bias_of(table, position[row : row + 1], position[row] + 1)
            rows.append(attention(q[:, None], *stored(cache, row, position[row] + 1), bias).reshape(-1))
        return w["self_out"](np.stack(rows))

    def cross_attention(y: Array) -> Array:
        rows = []
        for row, q in enumerate(w["queries"](y)):
            source = source_row[row]
            key, value = stored(cross_cache, source, source_length[source])
            rows.append(attention(q.reshape(heads, 1, -1), key, value).reshape(-1))
        return w["cross_out"](np.stack(rows))

    x = sublayer(x.astype(np.float64), w["self_norm"], pre_norm, self_attention)
    x = sublayer(x, w["cross_norm"], pre_norm, cross_attention)
    x = sublayer(x, w["feed_norm"], pre_norm, lambda y: w["narrow"](ACTIVATIONS[activation](w["widen"](y))))
    return x, cache


def log_softmax(x: Array) -> Array:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def top_k(x: Array, k: int) -> Array:
    """Indices of the k highest, descending, of equal ones the lower first."""
    return np.argsort(-x, axis=-1, kind="stable")[:, :k]
