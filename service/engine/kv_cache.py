"""The KV cache of a lane: for each row, the keys and values of its source and of its own tokens.

The rows in use are 0 to R - 1, without gaps, so that a step computes no empty ones.

    HostKVCache      in this process; the fast graphs write it in place, and only rows that move are copied
    DeviceKVCache    on the provider's device; each step returns new tensors, and the `merge` graph reorders them

L decoder layers   R rows   H heads   P past   S source   d features of a head
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort

from export.bundle import Sizes, padded_width
from service.engine.runtime import Runtime
from service.engine.tasks import Array

SIDES = ("key", "value")
LENGTH_UNIT = 32  # initial P; DeviceKVCache grows in multiples of it, HostKVCache doubles P
NEW_ROW = -1  # the origin of a row that was just added
NOTHING_SHARED: Sequence[int] = ()


class KVCache(Protocol):
    width: int  # S, of every row
    reuses_bindings: bool  # whether bindings made for a layout stay valid when that layout comes again
    encodes_ahead: bool  # whether it has `bind_ahead` and `put`

    @property
    def layout(self) -> tuple[int, ...]:
        """With the number of rows, identifies what `bind_step` binds: while both are the same, so are the bindings."""

    def bind_encoder(self, io: Any, held: int, count: int, encoded_width: int, width: int) -> None:
        """Bind the encoder's outputs for `count` sources: the rows after the first `held`, in a cache of this width."""

    def adopt_encoded(self, io: Any, held: int, width: int) -> None:
        """After the encoder has run: its outputs become rows of the cache."""

    def bind_ahead(self, io: Any, count: int, encoded_width: int) -> Array:
        """Bind the encoder's outputs for sources that get no row yet to the array returned: (count, 2L, H, S, d)"""

    def put(self, row: int, encoded: Array, width: int) -> None:
        """Copy a source that was encoded ahead, (2L, H, S, d), into `row`, the first unused one, of this width."""

    def reorder(
        self, origins: Sequence[int], position: int, shared: Sequence[int] = NOTHING_SHARED, width: int | None = None
    ) -> None:
        """Row i becomes what row origins[i] was, or stays if NEW_ROW; later rows are dropped, S may shrink to `width`.

        No row has more than `position` tokens. A row that is overwritten is never the origin of another. If shared[i]
        is not 0, rows i and origins[i] have the same source and the same first shared[i] tokens.
        """

    def clear(self) -> None:
        """Drop every row."""

    def reserve(self, rows: int, position: int) -> None:
        """Before a step: make room for one more token in rows that have at most `position`."""

    def bind_step(self, io: Any, rows: int) -> None:
        """Bind the cache to the inputs and outputs of a step."""

    def adopt_outputs(self, io: Any) -> None:
        """After a step: its outputs become the cache."""


def make_kv_cache(runtime: Runtime, max_rows: int) -> KVCache:
    if runtime.fast:
        return HostKVCache(runtime.sizes, max_rows, runtime.cache_dtype)
    return DeviceKVCache(runtime.sizes, runtime.merge, runtime.provider, runtime.cache_dtype)


def tensor_names(prefix: str, sizes: Sizes) -> list[str]:
    """The graphs' names of keys and values, layer by layer; `prefix` is cross, kept, self or present."""
    return [f"{prefix}_{side}_{layer}" for layer in range(sizes.decoder_layers) for side in SIDES]


class HostKVCache:
    """Two blocks, for past tokens and sources, sized for all rows at full length; only written pages take memory.

    They are laid out for the S and P in use rather than the largest, so that consecutive rows are close in memory.
    """

    reuses_bindings = encodes_ahead = True

    def __init__(self, sizes: Sizes, max_rows: int, dtype: str) -> None:
        self._sizes, self._max_rows, self._dtype = sizes, max_rows, np.dtype(dtype)
        self.width, self._length = 0, min(LENGTH_UNIT, sizes.max_length)  # S and P of the present layout
        tensors, full = 2 * sizes.decoder_layers, max_rows * sizes.d_model
        self._past_block = lazy_zeros((tensors, full * sizes.max_length), self._dtype)
        self._cross_block = lazy_zeros((tensors, full * padded_width(sizes.max_length)), self._dtype)
        self._past, self._cross = self._laid_out(self._past_block, self._length), self._laid_out(self._cross_block, 0)
        names = (tensor_names(prefix, sizes) for prefix in ("self", "present", "cross", "kept"))
        self._names = list(zip(*names, strict=True))
        self._narrow: list[Array] = []  # encoder outputs to be copied, narrower than the cache

    @property
    def layout(self) -> tuple[int, ...]:
        return self.width, self._length

    def _laid_out(self, block: Array, length: int) -> Array:
        """A block as (2L, R, H, length, d)."""
        sizes = self._sizes
        used = block[:, : self._max_rows * length * sizes.d_model]
        return used.reshape(len(block), self._max_rows, sizes.heads, length, sizes.head)

    def bind_encoder(self, io: Any, held: int, count: int, encoded_width: int, width: int) -> None:
        if width != self.width:
            self._set_width(held, width)
        if encoded_width == width:  # no copy: the encoder writes where the decoder reads
            targets, self._narrow = [tensor[held : held + count] for tensor in self._cross], []
        else:
            shape = (count, self._sizes.heads, encoded_width, self._sizes.head)
            targets = self._narrow = [np.empty(shape, self._dtype) for _ in self._cross]
        for name, target in zip(tensor_names("cross", self._sizes), targets, strict=True):
            io.bind_output(name, "cpu", 0, target.dtype, list(target.shape), target.ctypes.data)

    def adopt_encoded(self, io: Any, held: int, width: int) -> None:  # noqa: ARG002
        for tensor, values in zip(self._cross, self._narrow, strict=False):
            tensor[held : held + len(values), :, : values.shape[2]] = values
        self._narrow = []

    def bind_ahead(self, io: Any, count: int, encoded_width: int) -> Array:
        shape = (len(self._cross), count, self._sizes.heads, encoded_width, self._sizes.head)
        targets = np.empty(shape, self._dtype)
        for name, target in zip(tensor_names("cross", self._sizes), targets, strict=True):
            io.bind_output(name, "cpu", 0, target.dtype, list(target.shape), target.ctypes.data)
        return targets.swapaxes(0, 1)

    def put(self, row: int, encoded: Array, width: int) -> None:
        if width != self.width:
            self._set_width(row, width)
        used = min(width, encoded.shape[2])  # it may have been padded for longer sources
        self._cross[:, row, :, :used] = encoded[:, :, :used]

    def _set_width(self, held: int, width: int) -> None:
        used = min(width, self.width)
        values = self._cross[:, :held, :, :used].copy()
        self.width, self._cross = width, self._laid_out(self._cross_block, width)
        self._cross[:, :held, :, :used] = values

    def reorder(
        self, origins: Sequence[int], position: int, shared: Sequence[int] = NOTHING_SHARED, width: int | None = None
    ) -> None:
        past, cross = self._past, self._cross
        for row, origin in enumerate(origins):  # in place: no overwritten row is the origin of another
            if origin in (row, NEW_ROW):
                continue
            first = shared[row] if shared else 0
            if first < position:
                past[:, row, :, first:position] = past[:, origin, :, first:position]
            if first == 0:
                cross[:, row] = cross[:, origin]
        if width is not None and width < self.width:
            self._set_width(len(origins), width)
        if not origins:
            self.clear()

    def clear(self) -> None:
        if self._length > LENGTH_UNIT:
            self._set_length(0, LENGTH_UNIT)

    def _set_length(self, rows: int, length: int) -> None:
        used = min(length, self._length)
        values = self._past[:, :rows, :, :used].copy()
        self._past = self._laid_out(self._past_block, length)
        self._past[:, :rows, :, :used] = values
        self._length = length

    def reserve(self, rows: int, position: int) -> None:
        if position >= self._length:
            self._set_length(rows, min(2 * self._length, self._sizes.max_length))

    def bind_step(self, io: Any, rows: int) -> None:
        sizes = self._sizes
        past = [rows, sizes.heads, self._length, sizes.head]
        cross = [rows, sizes.heads, self.width, sizes.head]
        for i, (past_in, past_out, cross_in, cross_out) in enumerate(self._names):
            for name, same, block, shape in (
                (past_in, past_out, self._past, past),
                (cross_in, cross_out, self._cross, cross),
            ):
                address = block[i].ctypes.data
                io.bind_input(name, "cpu", 0, self._dtype, shape, address)
                io.bind_output(same, "cpu", 0, self._dtype, shape, address)

    def adopt_outputs(self, io: Any) -> None:
        pass  # they were written in place


class DeviceKVCache:
    """Tensors with exactly R rows, on the provider's device."""

    reuses_bindings = False  # every change gives new tensors
    encodes_ahead = False  # its tensors have no unused rows to `put` into

    def __init__(self, sizes: Sizes, merge: Any, device: str, dtype: str) -> None:
        self._sizes, self.width, self._merge, self._device, self._dtype = sizes, 0, merge, device, np.dtype(dtype)
        self._past: list[Any] = []
        self._cross: list[Any] = []
        self._rows = self._length = 0  # R and P
        self._changes = 0

    @property
    def layout(self) -> tuple[int, ...]:
        return (self._changes,)

    def bind_encoder(self, io: Any, held: int, count: int, encoded_width: int, width: int) -> None:  # noqa: ARG002
        for name in tensor_names("cross", self._sizes):
            io.bind_output(name, self._device)

    def bind_ahead(self, io: Any, count: int, encoded_width: int) -> Array:
        raise NotImplementedError

    def put(self, row: int, encoded: Array, width: int) -> None:
        raise NotImplementedError

    def adopt_encoded(self, io: Any, held: int, width: int) -> None:
        encoded = list(io.get_outputs())
        count = encoded[0].shape()[0]
        self.width = max(self.width, width) if held else width
        before = self._cross if held else encoded
        index = range(held + count) if held else range(count)
        self._cross = [self._merged(old, new, index, self.width) for old, new in zip(before, encoded, strict=True)]

    def reorder(
        self, origins: Sequence[int], position: int, shared: Sequence[int] = NOTHING_SHARED, width: int | None = None
    ) -> None:
        self._changes += 1
        if not origins:
            self.clear()
            return
        self._reorder_cross(origins, shared or [0] * len(origins), width)
        length = round_up(position + 1, LENGTH_UNIT)
        if self._past:
            index = [max(origin, 0) for origin in origins]
            self._past = [self._merged(old, old, index, length) for old in self._past]
        else:
            zeros = np.zeros([len(origins), self._sizes.heads, length, self._sizes.head], self._dtype)
            names = tensor_names("self", self._sizes)
            self._past = [ort.OrtValue.ortvalue_from_numpy(zeros, self._device, 0) for _ in names]
        self._rows, self._length = len(origins), length

    def _reorder_cross(self, origins: Sequence[int], shared: Sequence[int], width: int | None) -> None:
        """Rows of one source have the same cross-attention cache: nothing to do if only these have moved."""
        moved = any(origin not in (row, NEW_ROW) and not shared[row] for row, origin in enumerate(origins))
        narrower = width is not None and width < self.width
        if moved or narrower or len(origins) < self._rows:
            self.width = width if width is not None and narrower else self.width
            index = [row if origin == NEW_ROW else origin for row, origin in enumerate(origins)]
            self._cross = [self._merged(old, old, index, self.width) for old in self._cross]

    def clear(self) -> None:
        self._changes += 1
        self._past, self._cross, self._rows, self._length = [], [], 0, 0

    def _merged(self, held: Any, added: Any, index: Sequence[int], length: int) -> Any:
        io = self._merge.io_binding()
        io.bind_ortvalue_input("held", held)
        io.bind_ortvalue_input("added", added)
        io.bind_cpu_input("index", np.asarray(index, dtype=np.int64))
        io.bind_cpu_input("length", np.array([length]))
        io.bind_output("merged", self._device)
        self._merge.run_with_iobinding(io)
        return io.get_outputs()[0]

    def reserve(self, rows: int, position: int) -> None:
        if position >= self._length:
            self.reorder(range(rows), position)

    def bind_step(self, io: Any, rows: int) -> None:  # noqa: ARG002
        for name, value in zip(tensor_names("self", self._sizes), self._past, strict=True):
            io.bind_ortvalue_input(name, value)
        for name, value in zip(tensor_names("cross", self._sizes), self._cross, strict=True):
            io.bind_ortvalue_input(name, value)
        for name in tensor_names("present", self._sizes):
            io.bind_output(name, self._device)

    def adopt_outputs(self, io: Any) -> None:
        self._past = list(io.get_outputs())[-2 * self._sizes.decoder_layers :]
        self._changes += 1


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def lazy_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array of zeros; each page of it takes memory only once it is written."""
    count = int(np.prod(shape))
    if not count:
        return np.zeros(shape, dtype)
    block = mmap.mmap(-1, dtype.itemsize * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        block.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(block, dtype).reshape(shape)
