"""What the decoder remembers of each row between steps: its source's keys and values, and its own.

Rows lie densely from 0 on, so that a step sees no holes. Both kinds of memory take the same orders.

    HostMemory      in this process; the fast graphs write it in place, and only rows that move are copied
    DeviceMemory    wherever the provider computes; steps give new tensors, and a graph rearranges them

L decoder layers   R rows   H heads   P past   S source   d features of a head
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort

from export.bundle import Sizes
from service.engine.tasks import Array

SIDES = ("key", "value")
WIDTHS = 4  # the width of the sources in memory is a multiple of this
LENGTHS = 32  # so is the past that DeviceMemory holds; HostMemory doubles it
UNKNOWN: Sequence[int] = ()


class Memory(Protocol):
    width: int  # S, of every row

    @property
    def layout(self) -> tuple[int, ...]:
        """While this and the number of rows are the same, so is what `bind` binds."""

    def add_rows(self, held: int, encoded: Sequence[Any], width: int) -> None:
        """A row for each source that the encoder's outputs are of, after the `held` that are here."""

    def keep_rows(
        self, origins: Sequence[int], position: int, shared: Sequence[int] = UNKNOWN, width: int | None = None
    ) -> None:
        """Row i is from now on what row origins[i] was, -1 for one just added; the width may shrink.

        No row has more than `position` tokens. A row that nothing continues may be entered by another; shared[i] is 0,
        or both are of one source and their first shared[i] tokens are the same.
        """

    def make_room(self, rows: int, position: int) -> None:
        """The next step adds a token to rows of at most `position`."""

    def bind(self, io: Any, rows: int) -> None:
        """Bind a step's caches."""

    def take(self, io: Any) -> None:
        """After a step: what it gave is what is held."""


def tensor_names(prefix: str, sizes: Sizes) -> list[str]:
    """cross, kept, self or present: the names of its keys and values, layer by layer."""
    return [f"{prefix}_{side}_{layer}" for layer in range(sizes.decoder_layers) for side in SIDES]


class HostMemory:
    """Two blocks with room for every row at full length, of which only what is used takes memory.

    How wide sources and how long rows are laid out follows what is there: neighbours in memory stay near each other.
    """

    def __init__(self, sizes: Sizes, max_rows: int, kind: str) -> None:
        self.sizes, self._max_rows, self.kind = sizes, max_rows, np.dtype(kind)
        self.width, self._length = 0, min(LENGTHS, sizes.max_length)  # S and P as they are laid out
        tensors, full = 2 * sizes.decoder_layers, max_rows * sizes.d_model
        self._past_block = untouched((tensors, full * sizes.max_length), self.kind)
        self._cross_block = untouched((tensors, full * round_up(sizes.max_length, WIDTHS)), self.kind)
        self._past, self._cross = self._laid_out(self._past_block, self._length), self._laid_out(self._cross_block, 0)
        names = (tensor_names(prefix, sizes) for prefix in ("self", "present", "cross", "kept"))
        self._names = list(zip(*names, strict=True))

    @property
    def layout(self) -> tuple[int, ...]:
        return self.width, self._length

    def _laid_out(self, block: Array, length: int) -> Array:
        """A block as (2L, R, H, length, d)."""
        sizes = self.sizes
        used = block[:, : self._max_rows * length * sizes.d_model]
        return used.reshape(len(block), self._max_rows, sizes.heads, length, sizes.head)

    def places(self, held: int, count: int, width: int) -> list[Array]:
        """Where the encoder may write `count` sources of full width, after the `held` rows."""
        if width != self.width:
            self._set_width(held, width)
        return [tensor[held : held + count] for tensor in self._cross]

    def add_rows(self, held: int, encoded: Sequence[Array], width: int) -> None:
        count, encoded_width = encoded[0].shape[0], encoded[0].shape[2]
        for place, values in zip(self.places(held, count, width), encoded, strict=True):
            place[:, :, :encoded_width] = values

    def _set_width(self, held: int, width: int) -> None:
        kept = min(width, self.width)
        values = self._cross[:, :held, :, :kept].copy()
        self.width, self._cross = width, self._laid_out(self._cross_block, width)
        self._cross[:, :held, :, :kept] = values

    def keep_rows(
        self, origins: Sequence[int], position: int, shared: Sequence[int] = UNKNOWN, width: int | None = None
    ) -> None:
        past, cross = self._past, self._cross
        for row, origin in enumerate(origins):  # a row that is entered is one that nothing goes on from
            if origin in (row, -1):
                continue
            first = shared[row] if shared else 0
            if first < position:
                past[:, row, :, first:position] = past[:, origin, :, first:position]
            if first == 0:
                cross[:, row] = cross[:, origin]
        if width is not None and width < self.width:
            self._set_width(len(origins), width)
        if not origins and self._length > LENGTHS:
            self._set_length(0, LENGTHS)

    def _set_length(self, rows: int, length: int) -> None:
        kept = min(length, self._length)
        values = self._past[:, :rows, :, :kept].copy()
        self._past = self._laid_out(self._past_block, length)
        self._past[:, :rows, :, :kept] = values
        self._length = length

    def make_room(self, rows: int, position: int) -> None:
        if position >= self._length:
            self._set_length(rows, min(2 * self._length, self.sizes.max_length))

    def bind(self, io: Any, rows: int) -> None:
        sizes = self.sizes
        past = [rows, sizes.heads, self._length, sizes.head]
        cross = [rows, sizes.heads, self.width, sizes.head]
        for i, (before, after, memory, kept) in enumerate(self._names):
            for name, same, block, shape in ((before, after, self._past, past), (memory, kept, self._cross, cross)):
                address = block[i].ctypes.data
                io.bind_input(name, "cpu", 0, self.kind, shape, address)
                io.bind_output(same, "cpu", 0, self.kind, shape, address)

    def take(self, io: Any) -> None:
        pass


class DeviceMemory:
    """Tensors of exactly the rows that there are, on the provider's device."""

    def __init__(self, sizes: Sizes, merge: Any, device: str, kind: str) -> None:
        self.sizes, self.width, self._merge, self._device, self._kind = sizes, 0, merge, device, np.dtype(kind)
        self._past: list[Any] = []
        self._cross: list[Any] = []
        self._rows = self._length = 0  # R and P
        self._changes = 0

    def add_rows(self, held: int, encoded: Sequence[Any], width: int) -> None:
        count = encoded[0].shape()[0]
        self.width = max(self.width, width) if held else width
        before = self._cross if held else encoded
        index = range(held + count) if held else range(count)
        self._cross = [self._merged(old, new, index, self.width) for old, new in zip(before, encoded, strict=True)]

    def keep_rows(
        self, origins: Sequence[int], position: int, shared: Sequence[int] = UNKNOWN, width: int | None = None
    ) -> None:
        self._changes += 1
        if not origins:
            self._past, self._cross, self._rows, self._length = [], [], 0, 0
            return
        known = shared or [0] * len(origins)
        moved = any(origin not in (row, -1) and not known[row] for row, origin in enumerate(origins))
        narrower = width is not None and width < self.width
        if moved or narrower or len(origins) < self._rows:
            self.width = width if width is not None and narrower else self.width
            index = [row if origin == -1 else origin for row, origin in enumerate(origins)]
            self._cross = [self._merged(old, old, index, self.width) for old in self._cross]
        length = round_up(position + 1, LENGTHS)
        if not self._past:
            shape = [len(origins), self.sizes.heads, length, self.sizes.head]
            zeros = np.zeros(shape, self._kind)
            self._past = [
                ort.OrtValue.ortvalue_from_numpy(zeros, self._device, 0) for _ in tensor_names("self", self.sizes)
            ]
        else:
            index = [max(origin, 0) for origin in origins]
            self._past = [self._merged(old, old, index, length) for old in self._past]
        self._rows, self._length = len(origins), length

    def _merged(self, held: Any, added: Any, index: Sequence[int], length: int) -> Any:
        io = self._merge.io_binding()
        io.bind_ortvalue_input("held", held)
        io.bind_ortvalue_input("added", added)
        io.bind_cpu_input("index", np.asarray(index, dtype=np.int64))
        io.bind_cpu_input("length", np.array([length]))
        io.bind_output("merged", self._device)
        self._merge.run_with_iobinding(io)
        return io.get_outputs()[0]

    @property
    def layout(self) -> tuple[int, ...]:
        return (self._changes,)  # every change gives new tensors

    def make_room(self, rows: int, position: int) -> None:
        if position >= self._length:
            self.keep_rows(range(rows), position)

    def bind(self, io: Any, rows: int) -> None:  # noqa: ARG002
        for name, value in zip(tensor_names("self", self.sizes), self._past, strict=True):
            io.bind_ortvalue_input(name, value)
        for name, value in zip(tensor_names("cross", self.sizes), self._cross, strict=True):
            io.bind_ortvalue_input(name, value)
        for name in tensor_names("present", self.sizes):
            io.bind_output(name, self._device)

    def take(self, io: Any) -> None:
        self._past = list(io.get_outputs())[-2 * self.sizes.decoder_layers :]
        self._changes += 1


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def untouched(shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
    """An array of zeros whose pages take memory when they are first written, each alone."""
    count = int(np.prod(shape))
    if not count:
        return np.zeros(shape, kind)
    block = mmap.mmap(-1, kind.itemsize * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        block.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(block, kind).reshape(shape)
