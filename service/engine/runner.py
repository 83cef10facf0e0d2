"""The runner: binds one lane's tensors and runs the graphs. Sources in, KV cache out; tokens in, candidates out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from export.bundle import padded_width
from service.engine.kv_cache import NEW_ROW, make_kv_cache
from service.engine.runtime import Runtime
from service.engine.tasks import Array, Ids

PROBE_ROWS, PROBE_SOURCE, PROBE_STEPS, PROBE_REPEATS = 8, 8, 4, 6
MAX_BINDINGS = 256  # that are kept for reuse
MAX_GRAPH_TOP_K = 64  # most candidates that a step gives per row; a search that wants more ranks all logprobs itself
CANDIDATE_BYTES = np.dtype(np.int64).itemsize + np.dtype(np.float32).itemsize


@dataclass(frozen=True)
class StepOutputs:
    """Valid until the next step."""

    top_ids: Array  # (R, k)
    top_logprobs: Array  # (R, k)
    logprobs: Array  # (R, V)


@dataclass(frozen=True)
class Binding:
    """A step's inputs and outputs, bound for one number of rows: the same buffers at each step, with new contents."""

    io: Any
    outputs: StepOutputs


class Runner:
    """What one lane computes with: a KV cache of its own, and a runtime that others may use too."""

    def __init__(self, runtime: Runtime, max_rows: int) -> None:
        self._runtime, self._sizes, self._max_rows = runtime, runtime.sizes, max_rows
        self.cache = make_kv_cache(runtime, max_rows)
        self._bindings: dict[tuple[int, ...], Binding] = {}
        self._tokens, self._positions = np.zeros(max_rows, np.int64), np.zeros(max_rows, np.int64)
        self._lengths, self._top_k = np.zeros(max_rows, np.int64), np.zeros(1, np.int64)
        # Output buffers that all bindings share: a step's outputs are read before the next step begins.
        self._max_top_k = min(MAX_GRAPH_TOP_K, self._sizes.target_vocab)
        self._top_ids = np.zeros(max_rows * self._max_top_k, np.int64)
        self._top_logprobs = np.zeros(max_rows * self._max_top_k, np.float32)
        self._logprobs = np.zeros((max_rows, self._sizes.target_vocab), np.float32)

    @property
    def threads(self) -> int:
        """The lane's share of its runtime's threads."""
        return self._runtime.lane_threads

    def set_runtime(self, runtime: Runtime) -> None:
        """Go on with the same graphs on another number of threads; the KV cache stays."""
        self._runtime = runtime

    def encode(self, sources: Sequence[Ids], held: int, width: int) -> None:
        """Encode sources; their cross-attention keys and values become the rows after the first `held`."""
        io, longest = self._bind_sources(sources)
        self.cache.bind_encoder(io, held, len(sources), longest, width)
        self._runtime.encoder.run_with_iobinding(io)
        self.cache.adopt_encoded(io, held, width)

    def encode_ahead(self, sources: Sequence[Ids]) -> Array:
        """Encode sources that get no row yet: (sources, 2L, H, S, d)"""
        io, longest = self._bind_sources(sources)
        encoded = self.cache.bind_ahead(io, len(sources), longest)
        self._runtime.encoder.run_with_iobinding(io)
        return encoded

    def _bind_sources(self, sources: Sequence[Ids]) -> tuple[Any, int]:
        """The encoder's bound inputs, and their width with padding."""
        longest = padded_width(max(len(source) + 1 for source in sources))
        ids = np.full((len(sources), longest), self._runtime.pad, dtype=np.int64)
        lengths = np.array([len(source) + 1 for source in sources], dtype=np.int64)
        for row, source in zip(ids, sources, strict=True):
            row[: len(source)], row[len(source)] = source, self._runtime.eos
        io = self._runtime.encoder.io_binding()
        io.bind_cpu_input("source", ids)
        io.bind_cpu_input("source_length", lengths)
        return io, longest

    def step(
        self, tokens: Sequence[int], positions: Sequence[int], lengths: Sequence[int], top_k: int = 1
    ) -> StepOutputs:
        """Run a step; for each row: its last token, how many tokens before it are cached, and its source's length."""
        rows, top_k = len(tokens), min(top_k, self._max_top_k)
        self._tokens[:rows], self._positions[:rows], self._top_k[0] = tokens, positions, top_k
        self._lengths[:rows] = lengths
        self.cache.reserve(rows, max(positions))
        key = (self.threads, rows, top_k, *self.cache.layout)
        bound = self._bindings.get(key)
        if bound is None:
            if len(self._bindings) >= MAX_BINDINGS or not self.cache.reuses_bindings:
                self._bindings.clear()
            bound = self._bindings[key] = self._bind(rows, top_k)
        self._runtime.step.run_with_iobinding(bound.io)
        self.cache.adopt_outputs(bound.io)
        return bound.outputs

    def probe(self) -> float:
        """Seconds to encode a few sources and run a few steps, best of several tries; to choose between runtimes."""
        rows, eos = min(PROBE_ROWS, self._max_rows), self._runtime.eos
        seconds = []
        for _ in range(PROBE_REPEATS):
            started = time.perf_counter()
            self.encode([(eos,) * (PROBE_SOURCE - 1)] * rows, 0, padded_width(PROBE_SOURCE))
            self.cache.reorder([NEW_ROW] * rows, 0)
            for position in range(PROBE_STEPS):
                self.step([eos] * rows, [position] * rows, [PROBE_SOURCE] * rows)
            seconds.append(time.perf_counter() - started)
        self.cache.clear()
        return min(seconds)

    def _bind(self, rows: int, top_k: int) -> Binding:
        io = self._runtime.step.io_binding()
        inputs: dict[str, Array] = {
            "token": self._tokens[:rows],
            "position": self._positions[:rows],
            "top": self._top_k,
            "source_length": self._lengths[:rows],
        }
        for name, value in inputs.items():
            io.bind_input(name, "cpu", 0, value.dtype, list(value.shape), value.ctypes.data)
        outputs = StepOutputs(
            top_ids=self._top_ids[: rows * top_k].reshape(rows, top_k),
            top_logprobs=self._top_logprobs[: rows * top_k].reshape(rows, top_k),
            logprobs=self._logprobs[:rows],
        )
        for name in ("logprobs", "top_logprobs", "top_ids"):
            value = getattr(outputs, name)
            io.bind_output(name, "cpu", 0, value.dtype, list(value.shape), value.ctypes.data)
        self.cache.bind_step(io, rows)
        return Binding(io, outputs)
