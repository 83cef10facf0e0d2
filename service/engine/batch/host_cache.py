"""The KV cache in this process, which the kernel graphs write in place.

L decoder layers   R rows   H heads   P past   S source   d features of a head
"""

from __future__ import annotations

import heapq
import math
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attendant.export.bundle import Sizes, padded_width
from attendant.service.engine.batch.kv_cache import LENGTH_UNIT, NEW_ROW, NOTHING_SHARED, SIDES, Encoded, EncodedSources
from attendant.service.engine.tasks import Array


class Planes:
    """Tensors that grow along one axis, as (tensors, slots, A, length, B): keys and values, or their scales.

    The memory is for all slots at the largest length, of which only written pages are taken. It is laid out for the
    length in use rather than the largest, so that consecutive slots are close in memory.
    """

    def __init__(self, tensors: int, slots: int, a: int, b: int, most: int, dtype: str) -> None:
        self._slots, self._a, self._b = slots, a, b
        self.block = lazy_zeros((tensors, slots * a * most * b), np.dtype(dtype))
        self.values = self._laid_out(0)

    @property
    def length(self) -> int:
        return int(self.values.shape[3])

    def _laid_out(self, length: int) -> Array:
        used = self.block[:, : self._slots * self._a * length * self._b]
        return used.reshape(len(self.block), self._slots, self._a, length, self._b)

    def set_length(self, length: int, held: int) -> None:
        """Another length; the first `held` slots keep what fits."""
        used = min(length, self.length)
        kept = self.values[:, :held, :, :used].copy()
        self.values = self._laid_out(length)
        self.values[:, :held, :, :used] = kept


@dataclass(frozen=True)
class Kind:
    """Tensors of one shape that a cache consists of: (slots, *before, length, *after) each."""

    tensors: int  # of all layers
    before: tuple[int, ...]
    after: tuple[int, ...]
    dtype: str
    sides: tuple[str, ...]  # the names of a layer's tensors

    def planes(self, slots: int, most: int) -> Planes:
        return Planes(self.tensors, slots, math.prod(self.before), math.prod(self.after), most, self.dtype)

    def names(self, prefix: str) -> list[str]:
        """The graphs' names, layer by layer."""
        layers = self.tensors // len(self.sides)
        return [f"{prefix}_{side}_{layer}" for layer in range(layers) for side in self.sides]

    def empty(self, slots: int, length: int) -> Array:
        return np.empty((self.tensors, slots, math.prod(self.before), length, math.prod(self.after)), self.dtype)

    def bind(self, bind: Callable[..., None], prefix: str, values: Array, slots: int) -> None:
        """Bind the first `slots` slots of each tensor to a graph's inputs or outputs."""
        for name, tensor in zip(self.names(prefix), values, strict=True):
            shape = [slots, *self.before, values.shape[3], *self.after]
            bind(name, "cpu", 0, tensor.dtype, shape, tensor.ctypes.data)


class HostKVCache:
    """For the kernel graphs. Rows of one source share its keys and values: each row names its source's slot.

    With int8, every cached key and value has a scale, for each token and head.
    """

    reuses_bindings = encodes_ahead = True

    def __init__(self, sizes: Sizes, max_rows: int, dtype: str) -> None:
        self._sizes, self._max_rows = sizes, max_rows
        self._kinds = [Kind(2 * sizes.decoder_layers, (sizes.heads,), (sizes.head,), dtype, SIDES)]
        if dtype == "int8":
            self._kinds.append(Kind(sizes.decoder_layers, (2, sizes.heads), (), "float32", ("scale",)))
        self._past = [kind.planes(max_rows, sizes.max_length) for kind in self._kinds]
        self._cross = [kind.planes(max_rows, padded_width(sizes.max_length)) for kind in self._kinds]
        for planes in self._past:
            planes.set_length(min(LENGTH_UNIT, sizes.max_length), 0)
        self.source_rows: Array = np.zeros(max_rows, np.int64)  # of each row: the slot of its source
        self.source_lengths: Array = np.zeros(max_rows, np.int64)  # of each slot: the tokens of its source, if in use
        self._used: set[int] = set()  # slots
        self._free = list(range(max_rows))  # slots, as a heap: the lowest are used first, which keeps memory dense
        self._encoded: list[Encoded] = []  # bound to the encoder's outputs

    @property
    def width(self) -> int:
        return self._cross[0].length

    @property
    def length(self) -> int:
        """P, the tokens that rows have room for."""
        return self._past[0].length

    @property
    def layout(self) -> tuple[int, ...]:
        return self.width, self.length

    def bind_encoder(self, io: Any, held: int, count: int, encoded_width: int, width: int) -> None:  # noqa: ARG002
        sources = EncodedSources(self.bind_ahead(io, count, encoded_width))
        self._encoded = [Encoded(sources, index) for index in range(count)]

    def adopt_encoded(self, io: Any, held: int, width: int) -> None:  # noqa: ARG002
        for row, encoded in enumerate(self._encoded, held):
            self.put(row, encoded, width)
        self._encoded = []

    def bind_ahead(self, io: Any, count: int, encoded_width: int) -> tuple[Array, ...]:
        arrays = tuple(kind.empty(count, encoded_width) for kind in self._kinds)
        for kind, values in zip(self._kinds, arrays, strict=True):
            kind.bind(io.bind_output, "cross", values, count)
        return arrays

    def put(self, row: int, encoded: Encoded, width: int) -> None:
        if width != self.width:
            self._set_width(width)
        slot = self.source_rows[row] = self.take(1, width)[0]
        arrays, index = encoded.sources.arrays, encoded.number
        used = min(width, arrays[0].shape[3])  # it may have been padded for longer sources
        for planes, values in zip(self._cross, arrays, strict=True):
            planes.values[:, slot, :, :used] = values[:, index, :, :used]

    def take(self, count: int, width: int) -> list[int]:
        """Slots for new sources, in a cache of at least this width."""
        if not width <= self.width <= 2 * width:
            self._set_width(width)
        slots = [heapq.heappop(self._free) for _ in range(count)]
        self._used.update(slots)
        return slots

    def cross_values(self) -> list[Array]:
        """Keys and values of the sources, (2L, slots, H, S, d), and with int8 their scales, (L, slots, 2H, S, 1)."""
        return [planes.values for planes in self._cross]

    def release(self, slot: int) -> None:
        """No row needs this source any more."""
        self._used.remove(slot)
        self.source_lengths[slot] = 0
        heapq.heappush(self._free, slot)

    def shrink_to_fit(self, rows: int) -> None:
        """After sources have left: the width that the others need, if it is at most half of what they have."""
        needed = padded_width(int(self.source_lengths.max()))
        self.shrink(rows, needed if 2 * needed <= self.width else self.width)

    def shrink(self, rows: int, width: int) -> None:
        """After rows have left: the rest, `rows`, needs no more than this width."""
        if not rows:
            self.clear()
        elif width < self.width:
            self._set_width(width)

    def _set_width(self, width: int) -> None:
        for planes in self._cross:
            planes.set_length(width, 1 + max(self._used, default=-1))

    def past_values(self) -> list[Array]:
        """Keys and values of the rows' own tokens, (2L, R, H, P, d), and with int8 their scales, (L, R, 2H, P, 1)."""
        return [planes.values for planes in self._past]

    def reorder(
        self, origins: Sequence[int], position: int, shared: Sequence[int] = NOTHING_SHARED, width: int | None = None
    ) -> None:
        for row, origin in enumerate(origins):  # in place: no overwritten row is the origin of another
            if origin in (row, NEW_ROW):
                continue
            first = shared[row] if shared else 0
            if first < position:
                for planes in self._past:
                    planes.values[:, row, :, first:position] = planes.values[:, origin, :, first:position]
            self.source_rows[row] = self.source_rows[origin]
        for slot in self._used.difference(self.source_rows[: len(origins)].tolist()):
            self.release(slot)
        self.shrink(len(origins), self.width if width is None else width)

    def clear(self) -> None:
        self._used, self._free = set(), list(range(self._max_rows))
        self.source_lengths[:] = 0
        if self.length > LENGTH_UNIT:
            self._set_length(0, LENGTH_UNIT)

    def _set_length(self, rows: int, length: int) -> None:
        for planes in self._past:
            planes.set_length(length, rows)

    def reserve(self, rows: int, position: int) -> None:
        if position >= self.length:
            self._set_length(rows, min(2 * self.length, self._sizes.max_length))

    def bind_step(self, io: Any, rows: int) -> None:
        for kind, past, cross in zip(self._kinds, self._past, self._cross, strict=True):
            kind.bind(io.bind_input, "self", past.values, rows)
            kind.bind(io.bind_output, "present", past.values, rows)  # in place
            kind.bind(io.bind_input, "cross", cross.values, self._max_rows)

    def adopt_outputs(self, io: Any) -> None:
        pass  # they were written in place


def lazy_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array of zeros; each page of it takes memory only once it is written."""
    count = int(np.prod(shape))
    if not count:
        return np.zeros(shape, dtype)
    block = mmap.mmap(-1, dtype.itemsize * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        block.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(block, dtype).reshape(shape)
