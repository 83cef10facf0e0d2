"""The tables of a model's embeddings: a token's nearest ones, the vocabulary in a plane, its positions.

Tables are read from the bundle's files a part at a time: a large vocabulary's is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from attendant.service.engine.explain.counts import MOST_NEIGHBOURS, MOST_POINTS, MOST_POSITIONS
from attendant.service.engine.explain.full_graph import GraphFiles
from attendant.service.engine.tasks import Array, IncludedValues, Neighbours, Plane

ROWS = 4096  # of a table that are read at once
BLOCK = 32  # tokens that lie together in a packed table (docs/kernels.md)


class Table:
    """Token embeddings of a side, (V, D) in f32; in int8, a packed weight of D x V and a factor for each token."""

    def __init__(self, files: GraphFiles, side: str) -> None:
        self._files, (self._table, *self._factors) = files, files.tables[side]
        self.size, self.width = files.shape(self._factors[0] if self._factors else self._table)[0], files.sizes.d_model

    def rows(self, start: int, stop: int) -> Array:
        if not self._factors:
            return self._files.rows(self._table, start, stop).astype(np.float32)
        first = start // BLOCK
        blocks = self._files.rows(self._table, first, -(-stop // BLOCK))  # (blocks, groups, 2, 16, 4)
        words = blocks.transpose(0, 2, 3, 1, 4).reshape(len(blocks) * BLOCK, -1)[:, : self.width]
        found = words[start - first * BLOCK : stop - first * BLOCK].astype(np.float32)
        for factor in self._factors:
            found *= self._files.rows(factor, start, stop).astype(np.float32)
        return found

    def parts(self, check: Callable[[], None]) -> Iterator[tuple[int, Array]]:
        for start in range(0, self.size, ROWS):
            check()
            yield start, self.rows(start, min(start + ROWS, self.size))


def neighbours(table: Table, side: str, ids: Sequence[int], check: Callable[[], None]) -> Neighbours:
    """The tokens whose embeddings have the smallest angle with each one's, itself left out."""
    unique = sorted(set(ids))
    own = _unit(np.concatenate([table.rows(each, each + 1) for each in unique]))
    count = min(MOST_NEIGHBOURS, table.size - 1)
    best_ids = np.zeros((len(unique), 0), np.int64)
    best = np.zeros((len(unique), 0), np.float32)
    for start, part in table.parts(check):
        cosines = own @ _unit(part).T
        for row, each in enumerate(unique):
            if start <= each < start + len(part):
                cosines[row, each - start] = -2
        best = np.concatenate([best, cosines], axis=1)
        best_ids = np.concatenate(
            [best_ids, np.broadcast_to(np.arange(start, start + len(part)), cosines.shape)], axis=1
        )
        order = np.argsort(-best, axis=1, kind="stable")[:, :count]
        best, best_ids = np.take_along_axis(best, order, 1), np.take_along_axis(best_ids, order, 1)
    nearest = tuple(
        tuple(zip(row.tolist(), cosines.tolist(), strict=True)) for row, cosines in zip(best_ids, best, strict=True)
    )
    return Neighbours(side, tuple(unique), nearest)


def plane(table: Table, skipped: Sequence[int]) -> Plane:
    """The first tokens of the vocabulary in the plane of the two directions in which they differ most."""
    ids = [each for each in range(min(table.size, MOST_POINTS)) if each not in skipped]
    rows = _unit(table.rows(0, min(table.size, MOST_POINTS))[ids])
    centred = rows - rows.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred)  # ascending
    axes = vectors[:, :-3:-1]
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])  # a direction and its opposite are one
    return Plane(tuple(ids), centred @ axes, float(values[-2:].sum() / max(values.sum(), 1e-12)))


def positions(files: GraphFiles) -> tuple[IncludedValues, ...]:
    """The table that is added to embeddings, for each side that has one."""
    found = []
    for side in ("source", "target"):
        name = f"{side}_embedding.positions"
        if files.has(name):
            count = min(MOST_POSITIONS, files.sizes.max_length, files.shape(name)[0])
            rows = files.rows(name, 0, count).astype(np.float32)
            found.append(IncludedValues("position_table", side, ("positions", "features"), rows))
    return tuple(found)


def is_turning(files: GraphFiles) -> bool:
    """Whether an offset turns each position alike, as it does with sines and cosines in any order of columns.

    Then the product of two rows depends on their distance alone, and is the same along each diagonal.
    """
    tables = positions(files)
    if not tables:
        return False
    products = tables[0].values @ tables[0].values.T
    return bool(np.abs(products[1:, 1:] - products[:-1, :-1]).max(initial=0) < 0.01 * np.diag(products).mean())


def _unit(rows: Array) -> Array:
    found: Array = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return found
