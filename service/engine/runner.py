"""One lane's tensors and their bindings: sources in, memory out; tokens in, candidates out. It knows no policy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from export.bundle import LEAST_WIDTH
from service.engine.kv_cache import WIDTHS, DeviceMemory, HostMemory, Memory, round_up, tensor_names
from service.engine.runtime import Runtime
from service.engine.tasks import Array, Ids

PROBED_ROWS, PROBES = 8, 6
MOST_BINDINGS = 256  # that are kept


@dataclass(frozen=True)
class Candidates:
    top_ids: Array  # (R, k)
    top_logprobs: Array  # (R, k)
    logprobs: Array  # (R, V); valid until the next step


@dataclass(frozen=True)
class Binding:
    """A step's inputs and outputs, bound for one number of rows; what is in them changes, where they are does not."""

    io: Any
    top_ids: Array
    top_logprobs: Array


class Session:
    """What one lane computes with: its own memory, and a runtime that others may use too."""

    def __init__(self, runtime: Runtime, max_rows: int) -> None:
        self.sizes, self.runtime = runtime.sizes, runtime
        self.memory: Memory = (
            HostMemory(self.sizes, max_rows, runtime.cache)
            if runtime.fast
            else DeviceMemory(self.sizes, runtime.merge, runtime.provider, runtime.cache)
        )
        self._bindings: dict[tuple[int, ...], Binding] = {}
        rows, vocabulary = max_rows, self.sizes.target_vocab
        self._tokens, self._positions = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._lengths, self._top = np.zeros(rows, np.int64), np.zeros(1, np.int64)
        self._logprobs = np.zeros((rows, vocabulary), np.float32)

    def use(self, runtime: Runtime) -> None:
        """Go on with another number of threads; the memory stays."""
        self.runtime = runtime

    def encode(self, sources: Sequence[Ids], held: int, width: int) -> None:
        """Encode sources, and put what the decoder needs of each into a row of its own, after the `held` ones."""
        longest = round_up(max(LEAST_WIDTH, *(len(source) + 1 for source in sources)), WIDTHS)
        ids = np.full((len(sources), longest), self.runtime.pad, dtype=np.int64)
        lengths = np.array([len(source) + 1 for source in sources], dtype=np.int64)
        for row, source in zip(ids, sources, strict=True):
            row[: len(source)], row[len(source)] = source, self.runtime.eos
        names = tensor_names("cross", self.sizes)
        if isinstance(self.memory, HostMemory) and longest < width:
            feeds = {"source": ids, "source_length": lengths}
            self.memory.add_rows(held, self.runtime.encoder.run(names, feeds), width)
            return
        io = self.runtime.encoder.io_binding()
        for name, value in (("source", ids), ("source_length", lengths)):
            io.bind_cpu_input(name, value)
        if isinstance(self.memory, HostMemory):  # no copy: the encoder writes where the decoder reads
            for name, place in zip(names, self.memory.places(held, len(sources), width), strict=True):
                io.bind_output(name, "cpu", 0, place.dtype, list(place.shape), place.ctypes.data)
            self.runtime.encoder.run_with_iobinding(io)
            return
        for name in names:
            io.bind_output(name, self.runtime.provider)
        self.runtime.encoder.run_with_iobinding(io)
        self.memory.add_rows(held, list(io.get_outputs()), width)

    def step(self, tokens: Sequence[int], positions: Sequence[int], lengths: Sequence[int], top: int) -> Candidates:
        """One more token for each row, of which there are `positions` and of its source `lengths`."""
        rows = len(tokens)
        self._tokens[:rows], self._positions[:rows], self._top[0] = tokens, positions, top
        self._lengths[:rows] = lengths
        self.memory.make_room(rows, max(positions))
        key = (self.runtime.threads, rows, top, *self.memory.layout)
        bound = self._bindings.get(key)
        if bound is None:
            if len(self._bindings) >= MOST_BINDINGS or not self.runtime.fast:  # on a device, memory is ever elsewhere
                self._bindings.clear()
            bound = self._bindings[key] = self._bind(rows, top)
        self.runtime.step.run_with_iobinding(bound.io)
        self.memory.take(bound.io)
        return Candidates(bound.top_ids, bound.top_logprobs, self._logprobs[:rows])

    def probe(self) -> float:
        """The least seconds that a few sources and steps took, for a choice between sessions."""
        rows, eos = min(PROBED_ROWS, len(self._tokens)), self.runtime.eos
        seconds = []
        for _ in range(PROBES):
            started = time.perf_counter()
            self.encode([(eos,) * 7] * rows, 0, round_up(8, WIDTHS))
            self.memory.keep_rows([-1] * rows, 0)
            for position in range(4):
                self.step([eos] * rows, [position] * rows, [8] * rows, 1)
            seconds.append(time.perf_counter() - started)
        self.memory.keep_rows([], 0)
        return min(seconds)

    def _bind(self, rows: int, top: int) -> Binding:
        io = self.runtime.step.io_binding()
        inputs: dict[str, Array] = {
            "token": self._tokens[:rows], "position": self._positions[:rows], "top": self._top,
            "source_length": self._lengths[:rows],
        }  # fmt: skip
        for name, value in inputs.items():
            io.bind_input(name, "cpu", 0, value.dtype, list(value.shape), value.ctypes.data)
        top_ids, top_logprobs = np.zeros((rows, top), np.int64), np.zeros((rows, top), np.float32)
        outputs: dict[str, Array] = {
            "logprobs": self._logprobs[:rows], "top_logprobs": top_logprobs, "top_ids": top_ids,
        }  # fmt: skip
        for name, value in outputs.items():
            io.bind_output(name, "cpu", 0, value.dtype, list(value.shape), value.ctypes.data)
        self.memory.bind(io, rows)
        return Binding(io, top_ids, top_logprobs)
