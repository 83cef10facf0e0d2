"""Weights and the layouts that the kernels read them in."""

from __future__ import annotations

import numpy as np
import pytest

from attendant.export.graphs.packing import WEIGHT_LEVELS, pack, pack_f32, pad_columns, quantize_columns, unpack


def test_a_weight_is_at_most_half_a_level_off_and_uses_seven_bits() -> None:
    weight = np.random.default_rng(0).normal(size=(40, 7)).astype(np.float32)
    levels, scale = quantize_columns(weight)
    assert np.abs(levels).max(axis=0).tolist() == [WEIGHT_LEVELS] * 7
    assert (np.abs(levels * scale - weight) <= scale / 2 + 1e-7).all()


def test_a_column_of_zeros_is_zeros() -> None:
    levels, scale = quantize_columns(np.zeros((4, 3), np.float32))
    assert not levels.any()
    assert (scale > 0).all()


@pytest.mark.parametrize(("rows", "columns"), [(16, 32), (64, 96), (16, 33), (6, 5), (1, 1)])
def test_every_element_is_where_the_layout_says_and_the_rest_is_zero(rows: int, columns: int) -> None:
    levels = np.random.default_rng(0).integers(-63, 64, (rows, columns)).astype(np.int8)
    packed = pack(levels)
    assert packed.shape == (-(-columns // 32), -(-rows // 4), 2, 16, 4)
    for (b, g, h, c, j), value in np.ndenumerate(packed):
        row, column = 4 * g + j, 32 * b + 16 * h + c
        assert value == (levels[row, column] if row < rows and column < columns else 0)
    assert (unpack(packed, rows, columns) == levels).all()
    assert packed.flags.c_contiguous


@pytest.mark.parametrize(("rows", "columns"), [(16, 32), (64, 96), (16, 48), (5, 1)])
def test_rows_of_a_block_of_an_f32_weight_lie_one_after_the_other(rows: int, columns: int) -> None:
    weight = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    packed = pack_f32(weight)
    assert packed.shape == (-(-columns // 32), rows, 32)
    for (b, i, c), value in np.ndenumerate(packed):
        assert value == (weight[i, 32 * b + c] if 32 * b + c < columns else 0)
    assert packed.flags.c_contiguous


def test_columns_are_padded_to_whole_blocks() -> None:
    assert pad_columns(np.arange(33.0), 1).tolist() == [*range(33), *[1] * 31]
    assert len(pad_columns(np.arange(64))) == 64
