"""Weights as the kernels read them: in blocks of 32 columns, in int8 with a scale for each column. Numpy only.

In f32 the rows of a block lie one after the other: (blocks of 32 columns, rows, 32).

    packed[b, i, c] = weight[i, 32 b + c]        0 where that is outside of the weight

A packed int8 weight is (blocks of 32 columns, groups of 4 rows, 2, 16, 4): a group's 4 rows of one column lie together,
as the instructions that multiply bytes read them, then the 16 columns of one register, then the block's other half.

    packed[b, g, h, c, j] = weight[4 g + j, 32 b + 16 h + c]

Levels have 7 bits, -63 to 63: without VNNI instructions, two products of an unsigned and a signed byte are added in 16
bits, where 2 * 255 * 63 fits and 2 * 255 * 127 does not (docs/decisions/023).
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

WEIGHT_LEVELS = 63
BLOCK = 32  # columns
GROUP = 4  # rows


def quantize_columns(weight: Array) -> tuple[Array, Array]:
    """(in, out) -> int8 of the same shape, and the scale of each column"""
    scale = np.maximum(np.abs(weight).max(axis=0), 1e-8) / WEIGHT_LEVELS
    return np.rint(weight / scale).astype(np.int8), scale.astype(np.float32)


def pack(levels: Array) -> Array:
    """(in, out) int8 -> (blocks, groups, 2, 16, 4)"""
    rows, columns = levels.shape
    whole = np.pad(levels, [(0, -rows % GROUP), (0, -columns % BLOCK)])
    grouped = whole.reshape(len(whole) // GROUP, GROUP, -1, 2, BLOCK // 2)  # (groups, 4, blocks, 2, 16)
    return np.ascontiguousarray(grouped.transpose(2, 0, 3, 4, 1))


def unpack(packed: Array, rows: int, columns: int) -> Array:
    """The inverse of `pack`."""
    whole = packed.transpose(1, 4, 0, 2, 3).reshape(packed.shape[1] * GROUP, -1)
    return whole[:rows, :columns]


def pack_f32(weight: Array) -> Array:
    """(in, out) -> (blocks, in, 32)"""
    whole = np.pad(weight, [(0, 0), (0, -weight.shape[1] % BLOCK)])
    return np.ascontiguousarray(whole.reshape(len(whole), -1, BLOCK).transpose(1, 0, 2))


def pad_columns(values: Array, fill: float = 0) -> Array:
    """A value for each column -> one for each packed column"""
    return np.pad(values, [(0, -len(values) % BLOCK)], constant_values=fill)
