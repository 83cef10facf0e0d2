"""What an engine is given of the machine: its settings, and the graphs, lanes and rows that follow from them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, fields

import numpy as np

from export.bundle import Bundle
from service.engine.kv_cache import WIDTH_UNIT, round_up
from service.engine.runner import CANDIDATE_BYTES, MAX_GRAPH_TOP_K, PROBE_ROWS, Runner
from service.engine.runtime import Runtime
from service.engine.turns import Turns
from service.errors import StartError
from service.hardware import available_cpus, memory_limit
from service.settings import Settings

MAX_ROWS = 64  # of a lane
MAX_LANES = 2
SMALL_MODEL_BYTES = 32e6  # of weights, up to which one thread may be as fast as several
WORTH_THREADS = 1.5  # how many times faster several must be: HTTP and tokenizers want a processor too
CACHE_SHARE = 0.4  # of the memory limit


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    provider: str = "auto"  # auto, cpu, cuda
    precision: str = "auto"  # auto, or a variant of the bundle
    threads: int = 0  # 0: by the container's processors, and for a small model by what is measured at the start
    lanes: int = 0  # batches decoded side by side; 0: two, where there are threads for them
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

    @property
    def runtimes(self) -> list[Runtime]:
        """Each once."""
        return [self.wide] if self.wide is self.narrow else [self.wide, self.narrow]

    @property
    def threads(self) -> int:
        """The most that compute at once."""
        return max(self.wide.threads, self.lanes * self.narrow.threads)


def total_threads(settings: EngineSettings) -> int:
    return settings.threads or available_cpus()


def allocate(bundle: Bundle, settings: EngineSettings, turns: Turns | None = None) -> Resources:
    """Load a bundle's graphs as the settings and this machine want; StartError if it cannot."""
    threads = total_threads(settings)
    wide = Runtime(bundle, settings.provider, settings.precision, threads)
    fitting = settings.max_rows or rows_that_fit(bundle, np.dtype(wide.cache_dtype).itemsize, settings.memory_shares)
    lanes = min(settings.lanes or MAX_LANES, threads, fitting) if wide.provider == "cpu" else 1
    max_rows = settings.max_rows or min(MAX_ROWS, fitting // lanes)
    if wide.provider != "cpu":
        return Resources(wide, wide, lanes, max_rows)
    if not settings.threads and threads > 1 and wide.weight_bytes() <= SMALL_MODEL_BYTES:
        single = wide.with_threads(1)
        with nullcontext() if turns is None else turns.take(threads):
            seconds = [Runner(runtime, PROBE_ROWS).probe() for runtime in (single, wide)]
        if seconds[0] <= WORTH_THREADS * seconds[1]:
            return Resources(single, single, lanes, max_rows)
    return Resources(wide, wide.with_threads(threads // lanes), lanes, max_rows)


def rows_that_fit(bundle: Bundle, item_bytes: int, memory_shares: int = 1) -> int:
    """Rows whose tensors, with a KV cache of numbers of some bytes, fit in a share of the memory limit."""
    sizes = bundle.sizes
    positions = sizes.max_length + round_up(sizes.max_length, WIDTH_UNIT)  # its own tokens, and those of its source
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
