"""The engine: a bundle, certified and warm, and the lanes that decode it.

Tasks wait in the scheduler; each lane is a thread that takes some, decodes them together and tells of their outcomes.
While there is little to do one lane has all the processors, and when there is much the lanes share them: two halves of
a batch on a processor each waste less time waiting for each other than one batch on both.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from export.bundle import Bundle
from service.engine.beam import GenerateSearch
from service.engine.interface import CertificateResult, EngineDescription
from service.engine.kv_cache import WIDTHS, round_up
from service.engine.lane import Lane
from service.engine.runner import PROBED_ROWS, Session
from service.engine.runtime import Runtime
from service.engine.sampling import SampleSearch
from service.engine.scheduler import Job, Scheduler, SubmittedJobs
from service.engine.search import NextTokenSearch, ScoreSearch, Special
from service.engine.tasks import (
    Distribution,
    EventCallback,
    Finished,
    Generate,
    NewTokens,
    NextToken,
    Result,
    Score,
    Scored,
    Task,
)
from service.errors import NotReadyError, ServiceError, StartError
from service.hardware import available_cpus, memory_limit
from service.metrics import Metrics
from service.settings import Settings
from service.tokenizer import Tokenizer

MOST_ROWS = 64
MOST_LANES = 2
SMALL_MODEL = 32e6  # bytes of weights up to which one thread may be as fast as several
WORTH_THREADS = 1.5  # how many times faster several must be: HTTP and tokenizers want a processor too
MEMORY_SHARE = 0.4  # of the memory limit, for caches


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    provider: str = "auto"  # auto, cpu, cuda
    precision: str = "auto"  # auto, or a variant of the bundle
    threads: int = 0  # 0: by the container's processors, and for a small model by what is measured at the start
    lanes: int = 0  # batches decoded side by side; 0: two, where there are threads for them
    max_rows: int = 0  # hypotheses in a step of a lane; 0: as many as the memory limit allows, up to 64
    max_queue_requests: int = 1024  # tasks that wait
    max_queue_tokens: int = 200_000  # the sum of their costs

    @classmethod
    def of(cls, settings: Settings) -> EngineSettings:
        """Those of the service's settings that the engine has too."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})


class Engine:
    def __init__(self, bundle: Bundle, settings: EngineSettings | None = None, metrics: Metrics | None = None) -> None:
        """Load, certify, warm up; StartError says why it cannot."""
        settings = settings or EngineSettings()
        self.bundle, self._metrics = bundle, metrics
        self.source_tokenizer, self.target_tokenizer = make_tokenizers(bundle)
        self._special = Special(*(bundle.special_ids[name] for name in ("pad", "bos", "eos")))
        wide, narrow, lanes, max_rows = make_runtimes(bundle, settings)
        self._runtimes = (wide, narrow)
        self._scheduler = Scheduler(lanes, max_rows, settings.max_queue_requests, settings.max_queue_tokens)
        self._lanes = [Lane(number, self._scheduler, wide, narrow) for number in range(lanes)]
        self._threads: list[threading.Thread] = []
        self._certify()

    @property
    def description(self) -> EngineDescription:
        bundle, runtime, scheduler = self.bundle, self._runtimes[0], self._scheduler
        return EngineDescription(
            model=bundle.name,
            sizes=bundle.sizes,
            special_ids=bundle.special_ids,
            variants=tuple(bundle.variants),
            produced_by=bundle.produced_by,
            max_source_length=bundle.limits["max_source_length"],
            max_target_length=bundle.limits["max_target_length"],
            precision=runtime.precision,
            provider=runtime.provider,
            provider_fallback=runtime.fallback,
            threads=max(runtime.threads, len(self._lanes) * self._runtimes[1].threads),
            lanes=len(self._lanes),
            max_rows=scheduler.max_rows,
            max_queue_requests=scheduler.max_requests,
            max_queue_tokens=scheduler.max_tokens,
            certificate=CertificateResult(
                drift=self.drift,
                tolerance=bundle.variants[runtime.precision].tolerance,
                samples=len(bundle.certificate["samples"]),
            ),
        )

    def count_waiting(self) -> int:
        return self._scheduler.waiting()

    def count_running(self) -> int:
        return self._scheduler.count()

    def submit(self, tasks: Sequence[Task], on_event: EventCallback, deadline: float | None = None) -> SubmittedJobs:
        """Any thread. QueueFullError or NotReadyError, or `on_event` gets one Finished for each task."""
        now = time.monotonic()
        jobs = [
            Job(task, index, on_event, deadline, now, make_search(self._special, task))
            for index, task in enumerate(tasks)
        ]
        try:
            return self._scheduler.submit(jobs)
        except ServiceError as error:
            if self._metrics and error.status == 429:
                self._metrics.rejected()
            raise

    def start(self) -> None:
        for number, lane in enumerate(self._lanes):
            thread = threading.Thread(target=lane.loop, name=f"attendant-lane-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self, grace: float = 0.0) -> None:
        """Accept nothing more, finish what was accepted within `grace` seconds, and fail the rest."""
        until = time.monotonic() + grace
        self._scheduler.close()
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._scheduler.stop()
        for thread in self._threads:
            thread.join()
        self._scheduler.abandon(NotReadyError("the server shut down before the answer was ready; ask another one."))

    def turn(self) -> None:
        """One turn of every lane, in this thread."""
        for lane in self._lanes:
            lane.turn()

    def run(self, tasks: Sequence[Task]) -> list[Result]:
        """Answers in order, in this thread: for the certificate, before the engine is started."""
        answers: list[Any] = [None] * len(tasks)

        def listener(event: NewTokens | Finished) -> None:
            if isinstance(event, Finished):
                answers[event.index] = event.answer

        self.submit(tasks, listener)
        while any(answer is None for answer in answers):
            self.turn()
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def _certify(self) -> None:
        """Replay the certificate with every runtime, which also warms everything up."""
        samples = self.bundle.certificate["samples"]
        tolerance = self.bundle.variants[self._runtimes[0].precision].tolerance
        try:
            self.drift = max((self._drift_of(sample) for sample in batches(samples, 8)), default=0.0)
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise StartError(f"{self.bundle.directory}: its certificate cannot be read: {error!r}.") from None
        for lane in self._lanes:
            lane.metrics = self._metrics
        if self._metrics:
            self._metrics.certificate_drift(self.drift)
        if not self.drift <= tolerance:
            raise StartError(
                f"{self.bundle.directory} fails its certificate on this machine: log-probabilities are off by "
                f"{self.drift:.2g}, and {tolerance:.2g} is allowed for {self._runtimes[0].precision}. Choose another "
                "--precision, or export it again on this machine."
            )

    def _drift_of(self, samples: list[dict[str, Any]]) -> float:
        """How far the log-probabilities are from torch's: of each sample's greedy answer, and of its first tokens."""
        tasks: list[Task] = []
        for sample in samples:
            tasks += [
                Score(source=tuple(sample["source_ids"]), target=tuple(sample["greedy"]["ids"])),
                NextToken(source=tuple(sample["source_ids"])),
            ]
        answers = self.run(tasks)
        worst = 0.0
        for sample, scored, first in zip(samples, answers[::2], answers[1::2], strict=True):
            assert isinstance(scored, Scored)
            assert isinstance(first, Distribution)
            wanted = np.array(sample["greedy"]["logprobs"])
            worst = max(worst, float(np.abs(np.array(scored.logprobs[: len(wanted)]) - wanted).max(initial=0.0)))
            known = sample["next_token"]
            distance = np.abs(first.logprobs[known["ids"]] - np.array(known["logprobs"]))
            worst = max(worst, float(distance.max(initial=0.0)))
        return worst


def make_search(special: Special, task: Task) -> GenerateSearch | ScoreSearch | NextTokenSearch:
    """What answers a task."""
    if isinstance(task, Generate):
        return SampleSearch(special, task) if task.options.samples else GenerateSearch(special, task)
    return ScoreSearch(special, task) if isinstance(task, Score) else NextTokenSearch(special, task)


def make_tokenizers(bundle: Bundle) -> tuple[Tokenizer, Tokenizer]:
    """Of sources and of targets: one and the same where there is one vocabulary."""
    source, target = (bundle.tokenizers[side] for side in ("source", "target"))
    first = Tokenizer(source, bundle.special_ids)
    same = source.read_bytes() == target.read_bytes()
    return first, first if same else Tokenizer(target, bundle.special_ids)


def make_runtimes(bundle: Bundle, settings: EngineSettings) -> tuple[Runtime, Runtime, int, int]:
    """What a lane computes with when it is alone and beside others; how many lanes there are, and rows in each."""
    threads = settings.threads or available_cpus()
    wide = Runtime(bundle, settings.provider, settings.precision, threads)
    fitting = settings.max_rows or rows_that_fit(bundle, np.dtype(wide.cache).itemsize)
    lanes = min(settings.lanes or MOST_LANES, threads, fitting) if wide.provider == "cpu" else 1
    max_rows = settings.max_rows or min(MOST_ROWS, fitting // lanes)
    if wide.provider != "cpu":
        return wide, wide, lanes, max_rows
    if not settings.threads and threads > 1 and wide.weight_bytes() <= SMALL_MODEL:
        one = wide.with_threads(1)
        seconds = [Session(runtime, PROBED_ROWS).probe() for runtime in (one, wide)]
        if seconds[0] <= WORTH_THREADS * seconds[1]:
            return one, one, lanes, max_rows
    return wide, wide.with_threads(threads // lanes), lanes, max_rows


def rows_that_fit(bundle: Bundle, size: int) -> int:
    """Rows whose caches, of numbers of some bytes, fit in a share of the memory limit, at full length."""
    sizes = bundle.sizes
    positions = sizes.max_length + round_up(sizes.max_length, WIDTHS)  # its own tokens, and those of its source
    row = 2 * sizes.decoder_layers * sizes.d_model * size * positions + 4 * sizes.target_vocab
    fitting = int(memory_limit() * MEMORY_SHARE / row)
    if fitting < 1:
        raise StartError(
            f"the memory limit of {memory_limit() / 1e6:.0f} MB is too small for {bundle.directory}: "
            f"one hypothesis at full length needs {row / 1e6:.0f} MB beside the model."
        )
    return fitting


def batches(items: list[Any], size: int) -> list[list[Any]]:
    return [items[first : first + size] for first in range(0, len(items), size)]
