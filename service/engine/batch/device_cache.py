"""The KV cache on a provider's device, as tensors that graphs return.

R rows   P past   S source
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

from attendant.export.bundle import Sizes
from attendant.service.engine.batch.kv_cache import LENGTH_UNIT, NEW_ROW, NOTHING_SHARED, SIDES, Encoded
from attendant.service.engine.tasks import Array


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

    def bind_ahead(self, io: Any, count: int, encoded_width: int) -> tuple[Array, ...]:
        raise NotImplementedError

    def put(self, row: int, encoded: Encoded, width: int) -> None:
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


def tensor_names(prefix: str, sizes: Sizes) -> list[str]:
    """The graphs' names of keys and values, layer by layer; `prefix` is cross, self or present."""
    return [f"{prefix}_{side}_{layer}" for layer in range(sizes.decoder_layers) for side in SIDES]


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
