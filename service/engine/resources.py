"""What an engine is given of the machine: its settings, and the graphs, lanes and rows that follow from them."""

from __future__ import annotations

import logging
import math
from contextlib import nullcontext
from dataclasses import dataclass, fields

import numpy as np

from export.bundle import Bundle, padded_width
from service.engine.runner import CANDIDATE_BYTES, MAX_GRAPH_TOP_K, PROBE_ROWS, Runner
from service.engine.runtime import Runtime
from service.engine.turns import Turns
from service.errors import StartError
from service.hardware import available_cpus, memory_limit
from service.settings import Settings

MAX_ROWS = 64  # of a lane
MAX_LANES = 8
MAX_SMALL_LANES = 2  # of a small model, whose lanes wait for the interpreter's lock
SMALL_MODEL_BYTES = 32e6  # of weights, up to which one thread may be as fast as several
LEAST_LANE_ROWS = 32  # of full length that memory must hold for each lane: the widest beam of the default settings
LEAST_MEMORY = 8  # times the weights, from which on they are packed a second time, for lanes beside each other
WORTH_THREADS = 1.5  # how many times faster several must be: HTTP and tokenizers want a processor too
CACHE_SHARE = 0.4  # of the memory limit
log = logging.getLogger("attendant")


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    provider: str = "auto"  # auto, cpu, cuda
    precision: str = "auto"  # auto, or a variant of the bundle
    threads: int = 0  # 0: by the container's processors, and for a small model by what is measured at the start
    lanes: int = 0  # batches decoded side by side; 0: by threads, weights and memory limit
    max_rows: int = 0  # hypotheses in a step of a lane; 0: as many as the memory limit allows, up to 64
    max_queue_requests: int = 1024  # tasks that wait
    max_queue_tokens: int = 200_000  # the sum of their token budgets
    memory_shares: int = 1  # engines that share the memory for KV caches, this one included

    @classmethod
    def of(cls, settings: Settings, memory_shares: int = 1) -> EngineSettings:
        """Those of the service's settings that the engine has too."""
        names = [field.name for field in fields(cls) if field.name != "memory_shares"]
        return cls(**{name: getattr(settings, name) for name in names}, memory_shares=memory_shares)


@dataclass(frozen=True)
class Resources:
    wide: Runtime  # what a lane computes with while the others are idle
    narrow: Runtime  # and beside others
    lanes: int
    max_rows: int  # of each lane
    lanes_reason: str | None = None  # why memory allows fewer lanes than the threads would have

    @property
    def runtimes(self) -> list[Runtime]:
        """Each once."""
        return [self.wide] if self.wide is self.narrow else [self.wide, self.narrow]

    @property
    def threads(self) -> int:
        """The most that compute at once."""
        return max(self.wide.threads, self.lanes * self.narrow.lane_threads)


def most_lanes(threads: int) -> int:
    """Lanes of a large model: the largest power of two whose square is at most twice the threads."""
    return min(MAX_LANES, 1 << math.isqrt(2 * threads).bit_length() - 1)


def lanes_for(threads: int, weight_bytes: int) -> int:
    """Lanes where there is memory for them; `bench.lanes` simulates what else could be chosen."""
    return min(most_lanes(threads), MAX_SMALL_LANES if weight_bytes <= SMALL_MODEL_BYTES else MAX_LANES)


def choose_lanes(threads: int, weight_bytes: int, rows: int, memory: float) -> tuple[int, str | None]:
    """Lanes where the settings name none, and why they are fewer than the threads would have.

    `rows` of full length fit in memory; `memory` is one model's share of the limit.
    """
    lanes = lanes_for(threads, weight_bytes)
    if lanes > 1 and memory < LEAST_MEMORY * weight_bytes:
        return 1, (
            f"the memory limit of {memory / 1e6:.0f} MB is under {LEAST_MEMORY} times the weights' "
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


def allocate(bundle: Bundle, settings: EngineSettings, turns: Turns | None = None) -> Resources:
    """Load a bundle's graphs as the settings and this machine want; StartError if it cannot."""
    threads = total_threads(settings)
    wide = Runtime(bundle, settings.provider, settings.precision, threads)
    fitting = settings.max_rows or rows_that_fit(bundle, np.dtype(wide.cache_dtype).itemsize, settings.memory_shares)
    if wide.provider != "cpu":
        return Resources(wide, wide, 1, settings.max_rows or min(MAX_ROWS, fitting))
    lanes, reason = _lanes(settings, threads, wide.weight_bytes(), fitting)
    max_rows = settings.max_rows or min(MAX_ROWS, fitting // lanes)
    if not settings.threads and threads > 1 and wide.weight_bytes() <= SMALL_MODEL_BYTES:
        single = wide.with_threads(1)
        with nullcontext() if turns is None else turns.take(threads):
            seconds = [Runner(runtime, PROBE_ROWS).probe() for runtime in (single, wide)]
        if seconds[0] <= WORTH_THREADS * seconds[1]:
            return Resources(single, single, lanes, max_rows, reason)
    return Resources(wide, wide.with_threads(threads, lanes), lanes, max_rows, reason)


def _lanes(settings: EngineSettings, threads: int, weight_bytes: int, fitting: int) -> tuple[int, str | None]:
    """Those asked for, else those chosen; never more than there are threads and rows."""
    lanes, reason = settings.lanes, None
    if not lanes:
        rows = MAX_LANES * MAX_ROWS if settings.max_rows else fitting  # those asked for are no matter of memory
        lanes, reason = choose_lanes(threads, weight_bytes, rows, memory_limit() / settings.memory_shares)
    if reason:
        log.info("%s, since %s; --lanes sets another number", "1 lane" if lanes == 1 else f"{lanes} lanes", reason)
    return min(lanes, threads, fitting), reason


def rows_that_fit(bundle: Bundle, item_bytes: int, memory_shares: int = 1) -> int:
    """Rows whose tensors, with a KV cache of numbers of some bytes, fit in a share of the memory limit."""
    sizes = bundle.sizes
    positions = sizes.max_length + padded_width(sizes.max_length)  # its own tokens, and those of its source
    outputs = 4 * sizes.target_vocab + CANDIDATE_BYTES * min(MAX_GRAPH_TOP_K, sizes.target_vocab)
    row = 2 * sizes.decoder_layers * sizes.d_model * item_bytes * positions + outputs
    fitting = int(memory_limit() * CACHE_SHARE / memory_shares / row)
    if fitting < 1:
        raise StartError(
            f"the memory limit of {memory_limit() / 1e6:.0f} MB is too small for {bundle.directory}: "
            f"one hypothesis at full length needs {row / 1e6:.0f} MB beside {_model_or_models(memory_shares)}."
        )
    return fitting


def _model_or_models(count: int) -> str:
    return "the model" if count == 1 else f"the {count} models that may be loaded (--max-loaded)"
