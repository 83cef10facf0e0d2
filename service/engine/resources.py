"""An engine's settings, and the graphs, lanes and rows that follow from them and from the machine."""

from __future__ import annotations

import logging
import math
from contextlib import nullcontext
from dataclasses import dataclass, fields

import numpy as np

from attendant.common.hardware import available_cpus, memory_limit
from attendant.export.bundle import Bundle, padded_width
from attendant.service.engine.batch.runner import CANDIDATE_BYTES, PROBE_ROWS, Runner
from attendant.service.engine.batch.runtime import Runtime
from attendant.service.engine.queue.thread_budget import ThreadBudget
from attendant.service.engine.search.search import MAX_GRAPH_TOP_K
from attendant.service.errors import StartError
from attendant.service.settings import Settings

MAX_ROWS = 64  # per lane, of one request
MAX_LANE_ROWS = 72  # those and the ones that are kept for requests that hold none (queue/lane_rows.py)
MAX_LANES = 8
MAX_SMALL_LANES = 2  # of a small model, whose lanes wait for the GIL
SMALL_MODEL_BYTES = 32e6  # of weights, up to which one thread may be as fast as several
LEAST_LANE_ROWS = 32  # full-length rows that must fit in memory for each lane: the default max_beam_size
LEAST_MEMORY_FACTOR = 8  # times the weights; with less there is one lane without kernels: several pack weights twice
WORTH_THREADS = 1.5  # several must be more than this many times as fast as one: HTTP and tokenizers need a processor
MEGABYTE = 10**6
CACHE_SHARE = 0.4  # of the memory limit, for KV caches and the outputs of steps
log = logging.getLogger("attendant")


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    provider: str = "auto"  # auto, cpu, cuda
    precision: str = "auto"  # auto, or a variant of the bundle
    threads: int = 0  # 0: all processors of the container, or one a lane if a small model gains little from more
    lanes: int = 0  # batches decoded side by side; 0: by threads, weights and memory limit
    max_rows: int = 0  # hypotheses in a step of a lane; 0: as many as the memory limit allows, up to 72
    max_queue_requests: int = 1024  # tasks that wait
    max_queue_tokens: int = 200_000  # the sum of their token budgets
    memory_megabytes: int = 0  # that the process may come to hold; 0: the container's limit, or the machine's memory
    memory_shares: int = 1  # engines that share the memory for KV caches, this one included

    @property
    def memory_limit(self) -> int:
        """Bytes."""
        return self.memory_megabytes * MEGABYTE or memory_limit()

    @classmethod
    def of(cls, settings: Settings, memory_shares: int = 1) -> EngineSettings:
        """The engine's part of the service's settings."""
        names = [field.name for field in fields(cls) if field.name != "memory_shares"]
        return cls(**{name: getattr(settings, name) for name in names}, memory_shares=memory_shares)


@dataclass(frozen=True)
class Resources:
    all_threads: Runtime  # what a lane computes with while the others are idle
    lane_share: Runtime  # and while others are busy
    lanes: int
    max_rows: int  # of each lane
    lanes_reason: str | None = None  # why memory allows fewer lanes than the threads would, if so

    def memory_bytes(self, bundle: Bundle) -> int:
        """What the model may come to hold: weights and full caches."""
        return self.weight_bytes + self.kv_cache_bytes(bundle)

    @property
    def weight_bytes(self) -> int:
        """Runtimes share the weights if kernels compute; else each packs its own."""
        copies = 1 if self.all_threads.has_kernels else len(self.runtimes)
        return copies * self.all_threads.weight_bytes()

    def kv_cache_bytes(self, bundle: Bundle) -> int:
        """Of all lanes, when every row has its full length."""
        return self.lanes * self.max_rows * row_bytes(bundle, self.all_threads.cache_dtype)

    @property
    def runtimes(self) -> list[Runtime]:
        """Both runtimes, or one of them if they are the same."""
        return [self.all_threads] if self.all_threads is self.lane_share else [self.all_threads, self.lane_share]

    @property
    def threads(self) -> int:
        """The most threads that compute at once."""
        return max(self.all_threads.threads, self.lanes * self.lane_share.lane_threads)


def most_lanes(threads: int) -> int:
    """Lanes of a large model: the largest power of two whose square is at most twice the threads."""
    return min(MAX_LANES, 1 << math.isqrt(2 * threads).bit_length() - 1)


def lanes_for(threads: int, weight_bytes: int) -> int:
    """The number of lanes if memory suffices; `bench.profile.lanes` simulates other choices."""
    return min(most_lanes(threads), MAX_SMALL_LANES if weight_bytes <= SMALL_MODEL_BYTES else MAX_LANES)


def choose_lanes(
    threads: int, weight_bytes: int, rows: int, memory: float, kernels: bool = False
) -> tuple[int, str | None]:
    """The number of lanes if the settings name none; and the reason, if memory allows fewer than the threads would.

    `rows`: how many of full length fit in memory; `memory`: bytes, one model's share of the limit; `kernels`: they
    compute, and all lanes share the weights.
    """
    lanes = lanes_for(threads, weight_bytes)
    if lanes > 1 and not kernels and memory < LEAST_MEMORY_FACTOR * weight_bytes:
        return 1, (
            f"the memory limit of {memory / 1e6:.0f} MB is under {LEAST_MEMORY_FACTOR} times the weights' "
            f"{weight_bytes / 1e6:.0f} MB, which several lanes would hold a second time"
        )
    if rows < lanes * LEAST_LANE_ROWS:
        return max(1, rows // LEAST_LANE_ROWS), (
            f"the memory limit of {memory / 1e6:.0f} MB holds {rows} hypotheses of full length, "
            f"and a lane is given at least {LEAST_LANE_ROWS}"
        )
    return lanes, None


def total_threads(settings: EngineSettings) -> int:
    return settings.threads or available_cpus()


def allocate(bundle: Bundle, settings: EngineSettings, thread_budget: ThreadBudget | None = None) -> Resources:
    """Load a bundle's graphs, and choose lanes and rows by the settings and this machine; StartError if it cannot."""
    threads = total_threads(settings)
    all_threads = Runtime(bundle, settings.provider, settings.precision, threads)
    fitting = settings.max_rows or rows_that_fit(
        bundle, all_threads.cache_dtype, settings.memory_shares, settings.memory_limit
    )
    if all_threads.provider != "cpu":
        return Resources(all_threads, all_threads, 1, settings.max_rows or min(MAX_LANE_ROWS, fitting))
    if not all_threads.has_kernels:
        log.info("the portable graphs are used, which are slower. %s", all_threads.kernels_reason)
    lanes, reason = _lanes(settings, threads, all_threads, fitting)
    max_rows = settings.max_rows or min(MAX_LANE_ROWS, fitting // lanes)
    if not settings.threads and threads > 1 and all_threads.weight_bytes() <= SMALL_MODEL_BYTES:
        single = all_threads.with_threads(1)
        with nullcontext() if thread_budget is None else thread_budget.take(threads):
            seconds = [Runner(runtime, PROBE_ROWS).probe() for runtime in (single, all_threads)]
        if seconds[0] <= WORTH_THREADS * seconds[1]:
            return Resources(single, single, lanes, max_rows, reason)
    return Resources(all_threads, all_threads.with_threads(threads, lanes), lanes, max_rows, reason)


def _lanes(settings: EngineSettings, threads: int, runtime: Runtime, fitting: int) -> tuple[int, str | None]:
    """The lanes that the settings ask for, else those chosen; never more than there are threads or rows."""
    rows = MAX_LANES * MAX_LANE_ROWS if settings.max_rows else fitting  # if set, taken to fit
    lanes, reason = settings.lanes, None
    if not lanes:
        memory = settings.memory_limit / settings.memory_shares
        lanes, reason = choose_lanes(threads, runtime.weight_bytes(), rows, memory, runtime.has_kernels)
    if reason:
        log.info("%s, since %s; --lanes sets another number", "1 lane" if lanes == 1 else f"{lanes} lanes", reason)
    return min(lanes, threads, rows), reason


def row_bytes(bundle: Bundle, cache_dtype: str) -> int:
    """Memory of one full-length row, with a KV cache of this dtype."""
    sizes = bundle.sizes
    scales = 4 * sizes.heads if cache_dtype == "int8" else 0  # one for each head
    position = 2 * sizes.decoder_layers * (sizes.heads * sizes.head * np.dtype(cache_dtype).itemsize + scales)  # bytes
    positions = sizes.max_length + padded_width(sizes.max_length)  # its own tokens, and those of its source
    outputs = 4 * sizes.target_vocab + CANDIDATE_BYTES * min(MAX_GRAPH_TOP_K, sizes.target_vocab)
    return position * positions + outputs


def rows_that_fit(bundle: Bundle, cache_dtype: str, memory_shares: int = 1, memory: int | None = None) -> int:
    """How many full-length rows fit in this engine's share of `memory` bytes; None: the container's limit."""
    memory = memory_limit() if memory is None else memory
    row = row_bytes(bundle, cache_dtype)
    fitting = int(memory * CACHE_SHARE / memory_shares / row)
    if fitting < 1:
        raise StartError(
            f"the memory limit of {memory / 1e6:.0f} MB is too small for {bundle.directory}: "
            f"one hypothesis at full length needs {row / 1e6:.0f} MB beside {_model_or_models(memory_shares)}."
        )
    return fitting


def _model_or_models(count: int) -> str:
    return "the model" if count == 1 else f"the {count} models that may be loaded (--max-loaded)"
