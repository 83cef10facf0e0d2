"""The engine: one loop owns the onnxruntime sessions. Each turn is admit, step, postprocess.

Requests of different lengths, beams and options share each step; they join between steps and leave when they are done.
What a request gets does not depend on what it shared a step with: every kernel that the graphs use computes a row from
that row alone, and every search sees only its own candidates.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from export.bundle import Bundle
from service.errors import CancelledError, DeadlineError, NotReadyError, ServiceError, StartError
from service.hardware import available_cpus, memory_limit
from service.memory import WIDTHS, round_up
from service.metrics import Metrics
from service.rows import Rows
from service.scheduler import Job, Scheduler, Ticket
from service.search import GenerateSearch, NextTokenSearch, Special, make_search
from service.session import Session
from service.settings import Settings
from service.tasks import (
    Answer,
    Distribution,
    Finished,
    Generated,
    Listener,
    NewTokens,
    NextToken,
    Score,
    Scored,
    Task,
    Timing,
)
from service.tokenizer import Tokenizer

ENCODED_AT_ONCE = 512  # source tokens that are encoded between two steps, so that rows in flight do not starve
ENCODED_AT_FIRST = 4096  # and when none are in flight
MOST_ROWS = 64
SMALL_MODEL = 32e6  # bytes of weights up to which one thread may be as fast as several
WORTH_THREADS = 1.5  # how many times faster several must be: HTTP and tokenizers want a processor too
MEMORY_SHARE = 0.4  # of the memory limit, for caches
log = logging.getLogger("attendant")


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    provider: str = "auto"  # auto, cpu, cuda
    precision: str = "auto"  # auto, or a variant of the bundle
    threads: int = 0  # 0: by the container's processors, and for a small model by what is measured at the start
    max_rows: int = 0  # hypotheses in a step; 0: as many as the memory limit allows, up to 64
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
        self.source = Tokenizer(bundle.tokenizers["source"], bundle.special_ids)
        self.target = Tokenizer(bundle.tokenizers["target"], bundle.special_ids)
        self._special = Special(*(bundle.special_ids[name] for name in ("pad", "bos", "eos")))
        max_rows = settings.max_rows or rows_that_fit(bundle)
        self._session = make_session(bundle, settings, max_rows)
        self._scheduler = Scheduler(max_rows, settings.max_queue_requests, settings.max_queue_tokens)
        self._rows = Rows(self._session)
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._certify()

    def describe(self) -> dict[str, Any]:
        session, scheduler = self._session, self._scheduler
        return {
            "precision": session.precision,
            "provider": session.provider,
            "provider_fallback": session.fallback,
            "fast_graphs": session.fast,
            "threads": session.threads,
            "max_rows": scheduler.max_rows,
            "max_queue_requests": scheduler.max_requests,
            "max_queue_tokens": scheduler.max_tokens,
            "certificate": {
                "drift": self.drift,
                "tolerance": self.bundle.variants[session.precision].tolerance,
                "samples": len(self.bundle.certificate["samples"]),
            },
        }

    def waiting(self) -> int:
        return self._scheduler.waiting()

    def running(self) -> int:
        return len(self._scheduler.running)

    def submit(self, tasks: Sequence[Task], listener: Listener, deadline: float | None = None) -> Ticket:
        """Any thread. QueueFullError or NotReadyError, or the listener hears one Finished for each task."""
        now = time.monotonic()
        jobs = [
            Job(task, index, listener, deadline, now, make_search(self._special, task))
            for index, task in enumerate(tasks)
        ]
        try:
            return self._scheduler.submit(jobs)
        except ServiceError as error:
            if self._metrics and error.status == 429:
                self._metrics.rejected()
            raise

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="attendant-engine", daemon=True)
        self._thread.start()

    def close(self, grace: float = 0.0) -> None:
        """Accept nothing more, finish what was accepted within `grace` seconds, and fail the rest."""
        self._scheduler.close()
        if self._thread is not None:
            self._thread.join(grace)
            self._stopping = True
            self._scheduler.wake()
            self._thread.join()
        self._scheduler.abandon(NotReadyError("the server shut down before the answer was ready; ask another one."))

    def _loop(self) -> None:
        while not self._stopping and self._scheduler.wait_for_work():
            try:
                self.turn()
            except Exception:
                log.exception("a step failed; the requests in it get an error")
                self._rows.clear()
                for job in self._scheduler.running:
                    job.finish(ServiceError("the server failed while decoding; the request may be sent again."))
                self._scheduler.running = []

    def turn(self) -> None:
        """Admit, step, postprocess."""
        now = time.monotonic()
        self._drop(self._gone(now), now)
        most = ENCODED_AT_ONCE if self._scheduler.running else ENCODED_AT_FIRST
        self._admit(self._scheduler.admit(now, most), now)
        if self._scheduler.running:
            self._step()

    def _gone(self, now: float) -> list[Job]:
        """Running jobs that no one waits for, or whose time is up."""
        return [
            job
            for job in self._scheduler.running
            if job.cancelled or (job.deadline is not None and now >= job.deadline)
        ]

    def _drop(self, jobs: list[Job], now: float) -> None:
        if not jobs:
            return
        for job in jobs:
            self._answer(job, now, cut_short=True)
        self._rows.remove(jobs)
        self._scheduler.finished(jobs, now)

    def _admit(self, jobs: list[Job], now: float) -> None:
        """Encode the sources of new jobs, together."""
        fresh = []
        for job in jobs:
            if job.is_gone(now):
                self._answer(job, now, cut_short=True)
            else:
                fresh.append(job)
        if not fresh:
            return
        self._scheduler.running += fresh
        started = time.monotonic()
        self._rows.add(fresh)
        ended = time.monotonic()
        for job in fresh:
            job.encode_started, job.decode_started = started, ended
        if self._metrics:
            self._metrics.encode_seconds(ended - started)
            for job in fresh:
                self._metrics.queue_seconds(started - job.submitted)
                self._metrics.source_tokens(len(job.task.source) + 1)

    def _step(self) -> None:
        running = self._scheduler.running
        started = time.monotonic()
        candidates = self._rows.step(running)
        ended = time.monotonic()
        done, moved = [], False
        for job in running:
            rows = [candidates.row(slot) for slot in job.slots]
            parents = job.search.advance(rows)
            job.steps += len(rows)
            if job.search.done:
                done.append(job)
            elif len(parents) != len(job.slots) or parents != list(range(len(parents))):
                moved = True
            job.parents = parents
        if done or moved:
            self._rows.follow(running, done)
        for job in running:
            if job.task.stream:
                self._tell(job, ended)
        for job in done:
            self._answer(job, ended)
        if done:
            self._scheduler.finished(done, ended)
        if self._metrics:
            self._metrics.step(candidates.rows, ended - started, self._rows.padding())
            self._metrics.queue(len(self._scheduler.running), self._scheduler.waiting())

    def _tell(self, job: Job, now: float) -> None:
        """Tell of the tokens that have become certain."""
        assert isinstance(job.search, GenerateSearch)
        sure = job.search.certain()
        if sure is None or len(sure.ids) <= job.told:
            return
        first, job.told = job.told, len(sure.ids)
        if first == 0 and self._metrics:
            self._metrics.first_token_seconds(now - job.submitted)
        job.listener(NewTokens(job.index, tuple(sure.ids[first:]), tuple(sure.logprobs[first : job.told])))

    def _answer(self, job: Job, now: float, cut_short: bool = False) -> None:
        """The one outcome of a job."""
        metrics = self._metrics
        if job.cancelled:
            if metrics:
                metrics.wasted_tokens("cancelled", job.steps)
            job.finish(CancelledError())
            return
        answer = self._result(job, now, cut_short)
        if metrics:
            if cut_short:
                metrics.deadline()
            self._count(job, answer, now)
        job.finish(answer)

    def _result(self, job: Job, now: float, cut_short: bool) -> Answer | Exception:
        search = job.search
        timing = Timing(
            (job.encode_started or now) - job.submitted,
            job.decode_started - job.encode_started,
            now - job.decode_started if job.decode_started else 0.0,
        )
        late = DeadlineError(
            "the deadline passed before there was anything to answer; allow more time with timeout_ms."
        )
        if isinstance(search, GenerateSearch):
            best = search.best(cut_short)
            return Generated(best, timing) if best else late
        if cut_short:
            return late
        if isinstance(search, NextTokenSearch):
            return Distribution(search.distribution, search.logprobs, timing)
        return Scored(search.logprobs, timing)

    def _count(self, job: Job, answer: Answer | Exception, now: float) -> None:
        assert self._metrics is not None
        if not isinstance(answer, Generated):
            return
        tokens = sum(len(hypothesis.logprobs) for hypothesis in answer.hypotheses)
        self._metrics.target_tokens(tokens)
        self._metrics.wasted_tokens("pruned", max(0, job.steps - tokens))
        longest = max((len(hypothesis.logprobs) for hypothesis in answer.hypotheses), default=0)
        self._metrics.inter_token_seconds((now - job.decode_started) / max(longest, 1), longest)
        if not job.told:
            self._metrics.first_token_seconds(now - job.submitted)

    def run(self, tasks: Sequence[Task]) -> list[Answer]:
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
        """Replay the certificate, which also warms everything up."""
        metrics, self._metrics = self._metrics, None
        samples = self.bundle.certificate["samples"]
        tolerance = self.bundle.variants[self._session.precision].tolerance
        try:
            self.drift = max((self._drift_of(sample) for sample in batches(samples, 8)), default=0.0)
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise StartError(f"{self.bundle.directory}: its certificate cannot be read: {error!r}.") from None
        self._metrics = metrics
        if metrics:
            metrics.certificate_drift(self.drift)
        if not self.drift <= tolerance:
            raise StartError(
                f"{self.bundle.directory} fails its certificate on this machine: log-probabilities are off by "
                f"{self.drift:.2g}, and {tolerance:.2g} is allowed for {self._session.precision}. Choose another "
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


def make_session(bundle: Bundle, settings: EngineSettings, max_rows: int) -> Session:
    """A session with the threads asked for, or for a small model with as many as are measured to pay here."""
    session = Session(bundle, settings.provider, settings.precision, settings.threads or available_cpus(), max_rows)
    weights = sum(path.stat().st_size for path in session.graphs["step"].parent.iterdir())
    if settings.threads or session.threads == 1 or session.provider != "cpu" or weights > SMALL_MODEL:
        return session
    alone = Session(bundle, settings.provider, settings.precision, 1, max_rows)
    return session if alone.probe() > WORTH_THREADS * session.probe() else alone


def rows_that_fit(bundle: Bundle) -> int:
    """Rows whose caches fit in a share of the memory limit, at full length."""
    sizes = bundle.sizes
    positions = sizes.max_length + round_up(sizes.max_length, WIDTHS)  # its own tokens, and those of its source
    row = 2 * sizes.decoder_layers * sizes.d_model * 4 * positions + 4 * sizes.target_vocab
    fitting = int(memory_limit() * MEMORY_SHARE / row)
    if fitting < 1:
        raise StartError(
            f"the memory limit of {memory_limit() / 1e6:.0f} MB is too small for {bundle.directory}: "
            f"one hypothesis at full length needs {row / 1e6:.0f} MB beside the model."
        )
    return min(MOST_ROWS, fitting)


def batches(items: list[Any], size: int) -> list[list[Any]]:
    return [items[first : first + size] for first in range(0, len(items), size)]
