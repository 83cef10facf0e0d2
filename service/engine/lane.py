"""A lane: one thread that owns a batch. Each turn is admit, step, postprocess.

Requests of different lengths, beams and options share each step; they join between steps and leave when they are done.
What a request gets does not depend on what it shared a step with: every kernel that the graphs use computes a row from
that row alone, and every search sees only its own candidates. So it does not matter either which lane it was in, or
with how many threads a step was computed.
"""

from __future__ import annotations

import logging
import time

from service.engine.beam import GenerateSearch
from service.engine.rows import Rows
from service.engine.runner import Session
from service.engine.runtime import Runtime
from service.engine.scheduler import Job, Scheduler
from service.engine.search import NextTokenSearch
from service.engine.tasks import Distribution, Generated, NewTokens, Result, Scored, Timing
from service.errors import CancelledError, DeadlineError, ServiceError
from service.metrics import Metrics

ENCODED_AT_ONCE = 512  # source tokens that are encoded between two steps, so that rows in flight do not starve
ENCODED_AT_FIRST = 4096  # and when none are in flight
log = logging.getLogger("attendant")


class Lane:
    def __init__(self, number: int, scheduler: Scheduler, wide: Runtime, narrow: Runtime) -> None:
        """`wide` is what it computes with while no other lane has anything to do, else `narrow`."""
        self._number, self._scheduler = number, scheduler
        self._wide, self._narrow = wide, narrow
        self._session = Session(narrow, scheduler.max_rows)
        self._rows = Rows(self._session)
        self.metrics: Metrics | None = None

    @property
    def _running(self) -> list[Job]:
        return self._scheduler.running[self._number]

    def loop(self) -> None:
        """Until the scheduler ends."""
        while self._scheduler.wait_for_work(self._number):
            try:
                self.turn()
            except Exception:
                log.exception("a step failed; the requests in it get an error")
                self._fail()

    def _fail(self) -> None:
        self._rows.clear()
        failed = self._running
        self._scheduler.finished(self._number, failed, time.monotonic())
        for job in failed:
            job.finish(ServiceError("the server failed while decoding; the request may be sent again."))

    def turn(self) -> None:
        """Admit, step, postprocess."""
        now = time.monotonic()
        self._drop(self._gone(now), now)
        most = ENCODED_AT_ONCE if self._running else ENCODED_AT_FIRST
        admitted, passed = self._scheduler.admit(self._number, now, most)
        for job in passed:
            self._answer(job, now, cut_short=True)
        self._session.use(self._wide if self._scheduler.alone(self._number) else self._narrow)
        if admitted:
            self._encode(admitted)
        if self._running:
            self._step()

    def _gone(self, now: float) -> list[Job]:
        """Running jobs that no one waits for, or whose time is up."""
        return [job for job in self._running if job.is_gone(now)]

    def _drop(self, jobs: list[Job], now: float) -> None:
        if not jobs:
            return
        for job in jobs:
            self._answer(job, now, cut_short=True)
        self._rows.remove(jobs)
        self._scheduler.finished(self._number, jobs, now)

    def _encode(self, jobs: list[Job]) -> None:
        """The sources of new jobs, together."""
        started = time.monotonic()
        self._rows.add(jobs)
        ended = time.monotonic()
        for job in jobs:
            job.encode_started, job.decode_started = started, ended
        if self.metrics:
            self.metrics.encode_seconds(ended - started)
            for job in jobs:
                self.metrics.queue_seconds(started - job.submitted)
                self.metrics.source_tokens(len(job.task.source) + 1)

    def _step(self) -> None:
        running = self._running
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
            self._scheduler.finished(self._number, done, ended)
        if self.metrics:
            self.metrics.step(candidates.rows, ended - started, self._rows.padding())
            self.metrics.queue(self._scheduler.count(), self._scheduler.waiting())

    def _tell(self, job: Job, now: float) -> None:
        """Tell of the tokens that have become certain."""
        assert isinstance(job.search, GenerateSearch)
        sure = job.search.certain()
        if sure is None or len(sure.ids) <= job.told:
            return
        first, job.told = job.told, len(sure.ids)
        if first == 0 and self.metrics:
            self.metrics.first_token_seconds(now - job.submitted)
        job.on_event(NewTokens(job.index, tuple(sure.ids[first:]), tuple(sure.logprobs[first : job.told])))

    def _answer(self, job: Job, now: float, cut_short: bool = False) -> None:
        """The one outcome of a job."""
        metrics = self.metrics
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

    def _result(self, job: Job, now: float, cut_short: bool) -> Result | Exception:
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

    def _count(self, job: Job, answer: Result | Exception, now: float) -> None:
        assert self.metrics is not None
        if not isinstance(answer, Generated):
            return
        tokens = sum(len(hypothesis.logprobs) for hypothesis in answer.hypotheses)
        self.metrics.target_tokens(tokens)
        self.metrics.wasted_tokens("pruned", max(0, job.steps - tokens))
        longest = max((len(hypothesis.logprobs) for hypothesis in answer.hypotheses), default=0)
        self.metrics.inter_token_seconds((now - job.decode_started) / max(longest, 1), longest)
        if not job.told:
            self.metrics.first_token_seconds(now - job.submitted)
