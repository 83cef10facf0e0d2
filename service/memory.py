"""What the decoder remembers between steps: each source's keys and values, and each row's own.

Rows and sources lie densely from 0 on, so that a step sees no holes. A layout says where each comes from; both kinds of
memory take the same one.

    HostMemory      in this process; the fast graphs write it in place, and only rows that move are copied
    DeviceMemory    wherever the provider computes; steps give new tensors, and a graph rearranges them

L decoder layers   R rows   B sources   H heads   P past   S source   d features of a head
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort

from export.bundle import Sizes
from service.tasks import Array

SIDES = ("key", "value")
WIDTHS = 4  # the width of the sources in memory is a multiple of this
LENGTHS = 32  # so is the past that DeviceMemory holds; HostMemory doubles it


class Memory(Protocol):
    width: int  # S, of every source that is held

    @property
    def layout(self) -> tuple[int, ...]:
        """While this and the rows are the same, so is what `bind` binds."""

    def add_sources(self, held: int, encoded: Sequence[Any], width: int) -> None:
        """Put the encoder's outputs for some sources after the `held` that are here."""

    def keep_sources(self, origins: Sequence[int], width: int) -> None:
        """Source i is from now on what source origins[i] was; the width may shrink."""

    def keep_rows(self, origins: Sequence[int], position: int, shared: Sequence[int] = ()) -> None:
        """Row i is from now on what row origins[i] was, -1 for a new one; no row has more than `position` tokens.

        A row that nothing continues may be entered by another; the first shared[i] tokens of both are the same anyway,
        where that is known.
        """

    def make_room(self, rows: int, position: int) -> None:
        """The next step adds a token to rows of at most `position`."""

    def bind(self, io: Any, rows: int, sources: int) -> None:
        """Bind a step's caches."""

    def take(self, io: Any) -> None:
        """After a step: what it gave is what is held."""


def tensor_names(prefix: str, sizes: Sizes) -> list[str]:
    """cross, self or present: the names of its keys and values, layer by layer."""
    return [f"{prefix}_{side}_{layer}" for layer in range(sizes.decoder_layers) for side in SIDES]


class HostMemory:
    """Two blocks with room for every row and source at full length, of which only what is used takes memory.

    How wide sources and how long rows are laid out follows what is there: neighbours in memory stay near each other.
    """

    def __init__(self, sizes: Sizes, max_rows: int) -> None:
        self.sizes, self._max_rows = sizes, max_rows
        self.width, self._length = 0, min(LENGTHS, sizes.max_length)  # S and P as they are laid out
        tensors, most = 2 * sizes.decoder_layers, max_rows * sizes.max_length * sizes.d_model
        self._past_block, self._cross_block = untouched((tensors, most)), untouched((tensors, most + max_rows * WIDTHS))
        self._past, self._cross = self._laid_out(self._past_block, self._length), self._laid_out(self._cross_block, 0)
        names = (tensor_names(prefix, sizes) for prefix in ("self", "present", "cross"))
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
        """Where the encoder may write `count` sources of full width, after the `held` ones."""
        if width != self.width:
            self._set_width(held, width)
        return [tensor[held : held + count] for tensor in self._cross]

    def add_sources(self, held: int, encoded: Sequence[Array], width: int) -> None:
        count, encoded_width = encoded[0].shape[0], encoded[0].shape[2]
        for place, values in zip(self.places(held, count, width), encoded, strict=True):
            place[:, :, :encoded_width] = values

    def _set_width(self, held: int, width: int) -> None:
        kept = min(width, self.width)
        values = self._cross[:, :held, :, :kept].copy()
        self.width, self._cross = width, self._laid_out(self._cross_block, width)
        self._cross[:, :held, :, :kept] = values

    def keep_sources(self, origins: Sequence[int], width: int) -> None:
        for place, origin in enumerate(origins):
            if place != origin:
                self._cross[:, place] = self._cross[:, origin]
        if width < self.width:
            self._set_width(len(origins), width)

    def keep_rows(self, origins: Sequence[int], position: int, shared: Sequence[int] = ()) -> None:
        past = self._past
        for row, origin in enumerate(origins):  # a row that is entered is one that nothing goes on from
            first = shared[row] if shared else 0
            if origin not in (row, -1) and first < position:
                past[:, row, :, first:position] = past[:, origin, :, first:position]
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

    def bind(self, io: Any, rows: int, sources: int) -> None:
        sizes = self.sizes
        past = [rows, sizes.heads, self._length, sizes.head]
        cross = [sources, sizes.heads, self.width, sizes.head]
        for i, (before, after, memory) in enumerate(self._names):
            address = self._past[i].ctypes.data
            io.bind_input(before, "cpu", 0, np.float32, past, address)
            io.bind_output(after, "cpu", 0, np.float32, past, address)
            io.bind_input(memory, "cpu", 0, np.float32, cross, self._cross[i].ctypes.data)

    def take(self, io: Any) -> None:
        pass


class DeviceMemory:
    """Tensors of exactly the rows and sources that there are, on the provider's device."""

    def __init__(self, sizes: Sizes, merge: Any, device: str, real: str) -> None:
        self.sizes, self.width, self._merge, self._device, self._real = sizes, 0, merge, device, np.dtype(real)
        self._past: list[Any] = []
        self._cross: list[Any] = []
        self._length = self._steps = 0  # P

    def add_sources(self, held: int, encoded: Sequence[Any], width: int) -> None:
        count = encoded[0].shape()[0]
        self.width = max(self.width, width)
        self._cross = [
            self._merged(old, new, range(held + count), self.width)
            for old, new in zip(self._cross or encoded, encoded, strict=True)
        ] if held else [self._merged(new, new, range(count), self.width) for new in encoded]  # fmt: skip

    def keep_sources(self, origins: Sequence[int], width: int) -> None:
        self.width = min(self.width, width)
        self._cross = [self._merged(old, old, origins, self.width) for old in self._cross] if origins else []

    def keep_rows(self, origins: Sequence[int], position: int, shared: Sequence[int] = ()) -> None:  # noqa: ARG002
        if not origins:
            self._past, self._length = [], 0
            return
        length = round_up(position + 1, LENGTHS)
        if not self._past:
            shape = [len(origins), self.sizes.heads, length, self.sizes.head]
            zeros = np.zeros(shape, self._real)
            self._past = [
                ort.OrtValue.ortvalue_from_numpy(zeros, self._device, 0) for _ in tensor_names("self", self.sizes)
            ]
        else:
            index = [max(origin, 0) for origin in origins]
            self._past = [self._merged(old, old, index, length) for old in self._past]
        self._length = length

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
        return (self._steps,)  # every step gives new tensors

    def make_room(self, rows: int, position: int) -> None:
        if position >= self._length:
            self.keep_rows(range(rows), position)

    def bind(self, io: Any, rows: int, sources: int) -> None:  # noqa: ARG002
        for name, value in zip(tensor_names("self", self.sizes), self._past, strict=True):
            io.bind_ortvalue_input(name, value)
        for name, value in zip(tensor_names("cross", self.sizes), self._cross, strict=True):
            io.bind_ortvalue_input(name, value)
        for name in tensor_names("present", self.sizes):
            io.bind_output(name, self._device)

    def take(self, io: Any) -> None:
        self._past = list(io.get_outputs())[-2 * self.sizes.decoder_layers :]
        self._steps += 1


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def untouched(shape: tuple[int, ...]) -> Array:
    """An f32 array of zeros whose pages take memory when they are first written, each alone."""
    count = int(np.prod(shape))
    if not count:
        return np.zeros(shape, np.float32)
    block = mmap.mmap(-1, 4 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        block.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(block, np.float32).reshape(shape)
