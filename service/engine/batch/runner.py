"""The runner: binds one lane's tensors and runs the graphs. Sources in, KV cache out; tokens in, candidates out."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attendant.export.bundle import padded_width
from attendant.kernels.graph import Graph
from attendant.service.engine.batch.device_cache import DeviceKVCache
from attendant.service.engine.batch.host_cache import HostKVCache
from attendant.service.engine.batch.kv_cache import NEW_ROW, Encoded, EncodedSources, KVCache
from attendant.service.engine.batch.runtime import Runtime
from attendant.service.engine.search.search import MAX_GRAPH_TOP_K
from attendant.service.engine.tasks import Array, Ids

PROBE_ROWS, PROBE_SOURCE, PROBE_STEPS, PROBE_REPEATS = 8, 8, 4, 6
MAX_BINDINGS = 256  # of steps, that are kept for reuse
MAX_KEPT, MAX_KEPT_BYTES = 2, 2**18  # of encoders: for each width, and the most that one's outputs take
CANDIDATE_BYTES = np.dtype(np.int64).itemsize + np.dtype(np.float32).itemsize


@dataclass(frozen=True)
class StepOutputs:
    """Valid until the next step."""

    top_ids: Array  # (R, k)
    top_logprobs: Array  # (R, k)
    logprobs: Array  # (R, V), of rows that asked for it


@dataclass(frozen=True)
class Binding:
    """A step's inputs and outputs, bound for one number of rows: the same buffers at each step, with new contents."""

    io: Any
    outputs: StepOutputs


@dataclass(slots=True)
class EncoderBinding:
    """The encoder's inputs and outputs, bound for some number of sources and a width."""

    io: Any
    ids: Array  # (B, S)
    lengths: Array  # (B,)
    sources: EncodedSources | None = None  # the outputs, if they are no rows of the cache


class Runner:
    """What one lane computes with: a KV cache of its own, and a runtime that others may use too."""

    def __init__(self, runtime: Runtime, max_rows: int) -> None:
        self._runtime, self._sizes, self._max_rows = runtime, runtime.sizes, max_rows
        self.cache = make_kv_cache(runtime, max_rows)
        self._bindings: dict[tuple[int, ...], Binding] = {}
        # For compiled code, by threads, top_k and layout: the handle of each number of rows, null where none is bound.
        self._handles: dict[tuple[int, ...], ctypes.Array[ctypes.c_void_p]] = {}
        # By threads and width: bindings for one source whose outputs have been copied. One request alone is so faster.
        self._single_encoders: dict[tuple[int, int], list[EncoderBinding]] = {}
        # The inputs of a step: of each row its last token, its position, whether it asks for all log-probabilities.
        self.tokens, self.positions = np.zeros(max_rows, np.int64), np.zeros(max_rows, np.int64)
        self.whole, self._top_k = np.zeros(max_rows, np.int64), np.zeros(1, np.int64)
        self._lengths = np.zeros(max_rows, np.int64)  # of each row's source
        # Output buffers that all bindings share: a step's outputs are read before the next step begins.
        self._max_top_k = min(MAX_GRAPH_TOP_K, self._sizes.target_vocab)
        self.top_ids = np.zeros(max_rows * self._max_top_k, np.int64)
        self.top_logprobs = np.zeros(max_rows * self._max_top_k, np.float32)
        self._logprobs = np.zeros((max_rows, self._sizes.target_vocab), np.float32)

    @property
    def runtime(self) -> Runtime:
        return self._runtime

    @property
    def threads(self) -> int:
        """The lane's share of its runtime's threads."""
        return self._runtime.lane_threads

    def set_runtime(self, runtime: Runtime) -> None:
        """Go on with the same graphs on another number of threads; the KV cache stays."""
        self._runtime = runtime

    def encode(self, sources: Sequence[Ids], held: int, width: int) -> None:
        """Encode sources; their cross-attention keys and values become the rows after the first `held`."""
        longest = padded_width(max(len(source) + 1 for source in sources))
        bound = self._bind_encoder(len(sources), longest)
        self._set_sources(bound, sources)
        self.cache.bind_encoder(bound.io, held, len(sources), longest, width)
        self._runtime.encoder.run_with_iobinding(bound.io)
        self.cache.adopt_encoded(bound.io, held, width)

    def encode_ahead(self, sources: Sequence[Ids]) -> list[Encoded]:
        """Encode sources that get no row yet."""
        longest = padded_width(max(len(source) + 1 for source in sources))
        unused = self._single_encoders.setdefault((self.threads, longest), []) if len(sources) == 1 else []
        bound = unused.pop() if unused else self._bind_encoder(len(sources), longest)
        if not bound.sources:
            arrays = self.cache.bind_ahead(bound.io, len(sources), longest)
            small = len(sources) == 1 and sum(values.nbytes for values in arrays) <= MAX_KEPT_BYTES
            bound.sources = EncodedSources(arrays, partial(keep, bound, unused) if small else None)
        self._set_sources(bound, sources)
        self._runtime.encoder.run_with_iobinding(bound.io)
        return [Encoded(bound.sources, index) for index in range(len(sources))]

    def _bind_encoder(self, count: int, width: int) -> EncoderBinding:
        ids, lengths = np.empty((count, width), np.int64), np.empty(count, np.int64)
        io = self._runtime.encoder.io_binding()
        for name, value in (("source", ids), ("source_length", lengths)):
            io.bind_input(name, "cpu", 0, value.dtype, list(value.shape), value.ctypes.data)
        return EncoderBinding(io, ids, lengths)

    def _set_sources(self, bound: EncoderBinding, sources: Sequence[Ids]) -> None:
        bound.ids.fill(self._runtime.pad)
        for index, source in enumerate(sources):
            length = len(source)
            bound.ids[index, :length], bound.ids[index, length], bound.lengths[index] = (
                source,
                self._runtime.eos,
                length + 1,
            )

    def step(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        lengths: Sequence[int],
        top_k: int = 1,
        whole: Sequence[bool] | bool = True,
    ) -> StepOutputs:
        """Run a step; for each row: its last token, how many tokens before it are cached, and its source's length.

        `logprobs` has only the rows where `whole` is true; the plain graphs give all.
        """
        rows = len(tokens)
        self.tokens[:rows], self.positions[:rows], self.whole[:rows] = tokens, positions, whole
        if isinstance(self.cache, HostKVCache):
            self.cache.source_lengths[self.cache.source_rows[:rows]] = lengths
        else:
            self._lengths[:rows] = lengths
        return self.run(rows, max(positions), top_k)

    def run(self, rows: int, position: int, top_k: int) -> StepOutputs:
        """Run a step whose inputs are set; no row is beyond `position`."""
        bound = self._prepare(rows, position, top_k)
        self._runtime.step.run_with_iobinding(bound.io)
        self.cache.adopt_outputs(bound.io)
        return bound.outputs

    @property
    def steps_in_compiled_code(self) -> bool:
        """Whether compiled code can run the step, and so many of them in one call."""
        return isinstance(self._runtime.step, Graph)

    def prepare(self, rows: int, position: int, top_k: int) -> tuple[ctypes.Array[ctypes.c_void_p], int]:
        """For compiled code to run steps: the bindings known by now, by rows, that of `rows` among them; and top_k."""
        bound = self._prepare(rows, position, top_k)
        top_k = int(self._top_k[0])
        key = (self.threads, top_k, *self.cache.layout)
        handles = self._handles.get(key)
        if handles is None:
            handles = self._handles[key] = (ctypes.c_void_p * (self._max_rows + 1))()
        handles[rows] = bound.io.handle
        return handles, top_k

    def _prepare(self, rows: int, position: int, top_k: int) -> Binding:
        self._top_k[0] = top_k = min(top_k, self._max_top_k)
        self.cache.reserve(rows, position)
        key = (self.threads, rows, top_k, *self.cache.layout)
        bound = self._bindings.get(key)
        if bound is None:
            if not self.cache.reuses_bindings:
                self._bindings.clear()
            elif len(self._bindings) >= MAX_BINDINGS:
                self._forget_oldest()
            bound = self._bindings[key] = self._bind(rows, top_k)
        return bound

    def _forget_oldest(self) -> None:
        threads, rows, *others = oldest = next(iter(self._bindings))
        del self._bindings[oldest]
        if handles := self._handles.get((threads, *others)):
            handles[rows] = None

    def outputs(self, rows: int, top_k: int) -> StepOutputs:
        """What a step of so many rows writes."""
        return StepOutputs(
            top_ids=self.top_ids[: rows * top_k].reshape(rows, top_k),
            top_logprobs=self.top_logprobs[: rows * top_k].reshape(rows, top_k),
            logprobs=self._logprobs[:rows],
        )

    def probe(self) -> float:
        """Seconds to encode a few sources and run a few steps, best of several tries; to choose between runtimes."""
        rows, eos = min(PROBE_ROWS, self._max_rows), self._runtime.eos
        seconds = []
        for _ in range(PROBE_REPEATS):
            self.cache.clear()
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
            "token": self.tokens[:rows],
            "position": self.positions[:rows],
            "top": self._top_k,
        }
        if isinstance(self.cache, HostKVCache):
            inputs |= {"source_length": self.cache.source_lengths, "source_row": self.cache.source_rows[:rows]}
            inputs["whole"] = self.whole[:rows]
        else:
            inputs["source_length"] = self._lengths[:rows]
        for name, value in inputs.items():
            io.bind_input(name, "cpu", 0, value.dtype, list(value.shape), value.ctypes.data)
        outputs = self.outputs(rows, top_k)
        for name in ("logprobs", "top_logprobs", "top_ids"):
            value = getattr(outputs, name)
            io.bind_output(name, "cpu", 0, value.dtype, list(value.shape), value.ctypes.data)
        self.cache.bind_step(io, rows)
        return Binding(io, outputs)


def keep(bound: EncoderBinding, unused: list[EncoderBinding]) -> None:
    if len(unused) < MAX_KEPT:
        unused.append(bound)


def make_kv_cache(runtime: Runtime, max_rows: int) -> KVCache:
    if runtime.has_kernels:
        return HostKVCache(runtime.sizes, max_rows, runtime.cache_dtype)
    return DeviceKVCache(runtime.sizes, runtime.merge, runtime.provider, runtime.cache_dtype)
