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
LENGTHS = 32  # so is the past that DeviceMemory holds


class Memory(Protocol):
    width: int  # S, of every source that is held

    def add_sources(self, held: int, encoded: Sequence[Any], width: int) -> None:
        """Put the encoder's outputs for some sources after the `held` that are here."""

    def keep_sources(self, origins: Sequence[int], width: int) -> None:
        """Source i is from now on what source origins[i] was; the width may shrink."""

    def keep_rows(self, origins: Sequence[int], position: int, shared: Sequence[int] = ()) -> None:
        """Row i is from now on what row origins[i] was, -1 for a new one; no row has more than `position` tokens.

        A row that nothing continues may be entered by another; the first shared[i] tokens of both are the same anyway,
        where that is known.
        """

    def bind(self, io: Any, rows: int, sources: int, position: int) -> None:
        """Bind a step's caches, for rows of at most `position` tokens and the one that this step adds."""

    def take(self, io: Any) -> None:
        """After a step: what it gave is what is held."""


def tensor_names(prefix: str, sizes: Sizes) -> list[str]:
    """cross, self or present: the names of its keys and values, layer by layer."""
    return [f"{prefix}_{side}_{layer}" for layer in range(sizes.decoder_layers) for side in SIDES]


class HostMemory:
    """Every row and place that there may ever be has an address; what was never used takes no memory."""

    def __init__(self, sizes: Sizes, max_rows: int) -> None:
        self.sizes, self.max_rows, self.width = sizes, max_rows, 0
        self._tensors = 2 * sizes.decoder_layers
        names = (tensor_names(prefix, sizes) for prefix in ("self", "present", "cross"))
        self._names = list(zip(*names, strict=True))
        self._past = untouched((self._tensors, max_rows, sizes.heads, sizes.max_length, sizes.head))
        self._cross = untouched((self._tensors, max_rows, sizes.heads, 0, sizes.head))

    def add_sources(self, held: int, encoded: Sequence[Array], width: int) -> None:
        if width > self.width:
            self._widen(held, width)
        count, encoded_width = encoded[0].shape[0], encoded[0].shape[2]
        for tensor, values in zip(self._cross, encoded, strict=True):
            tensor[held : held + count, :, :encoded_width] = values

    def _widen(self, held: int, width: int) -> None:
        sizes, old = self.sizes, self._cross
        self._cross = untouched((self._tensors, self.max_rows, sizes.heads, width, sizes.head))
        kept = min(width, self.width)
        self._cross[:, :held, :, :kept] = old[:, :held, :, :kept]
        self.width = width

    def keep_sources(self, origins: Sequence[int], width: int) -> None:
        for place, origin in enumerate(origins):
            if place != origin:
                self._cross[:, place] = self._cross[:, origin]
        if width < self.width:
            self._widen(len(origins), width)

    def keep_rows(self, origins: Sequence[int], position: int, shared: Sequence[int] = ()) -> None:
        past = self._past
        for row, origin in enumerate(origins):  # a row that is entered is one that nothing goes on from
            first = shared[row] if shared else 0
            if origin not in (row, -1) and first < position:
                past[:, row, :, first:position] = past[:, origin, :, first:position]

    def bind(self, io: Any, rows: int, sources: int, position: int) -> None:  # noqa: ARG002
        sizes = self.sizes
        past = [rows, sizes.heads, sizes.max_length, sizes.head]
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
        self._length = 0  # P

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

    def bind(self, io: Any, rows: int, sources: int, position: int) -> None:  # noqa: ARG002
        if position >= self._length:
            self.keep_rows(range(rows), position)
        for name, value in zip(tensor_names("self", self.sizes), self._past, strict=True):
            io.bind_ortvalue_input(name, value)
        for name, value in zip(tensor_names("cross", self.sizes), self._cross, strict=True):
            io.bind_ortvalue_input(name, value)
        for name in tensor_names("present", self.sizes):
            io.bind_output(name, self._device)

    def take(self, io: Any) -> None:
        self._past = list(io.get_outputs())[-2 * self.sizes.decoder_layers :]


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def untouched(shape: tuple[int, ...]) -> Array:
    """An f32 array of zeros whose pages take memory when they are first written, each alone."""
    count = int(np.prod(shape))
    if not count:
        return np.zeros(shape, np.float32)
    block = mmap.mmap(-1, 4 * count)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        block.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(block, np.float32).reshape(shape)
