"""A lane: one thread that owns a batch of jobs. Each iteration is admit, step, finish.

Jobs of different lengths, beams and options share each step; they join between steps and leave when they are done.
What a job gets does not depend on what it shared a step with: every kernel that the graphs use computes a row from
that row alone, and every search sees only its own candidates. So it does not matter either which lane it was in, or
with how many threads a step was computed.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from attendant.service.engine.batch.compiled import MAX_STEPS, CompiledRows
from attendant.service.engine.batch.job import Job
from attendant.service.engine.batch.rows import MAX_ENCODED_TOKENS, Rows, StepLimits
from attendant.service.engine.batch.runner import Runner
from attendant.service.engine.batch.runtime import Runtime
from attendant.service.engine.observer import EngineObserver
from attendant.service.engine.queue.scheduler import Scheduler
from attendant.service.engine.queue.thread_budget import ThreadBudget
from attendant.service.errors import CancelledError, ServiceError

MAX_SOURCE_TOKENS = 512  # encoded between two steps, so that rows in flight do not starve
MAX_SOURCE_TOKENS_IDLE = 4096  # the same while no rows are in flight
log = logging.getLogger("attendant")


class Lane:
    def __init__(
        self,
        number: int,
        scheduler: Scheduler,
        all_threads: Runtime,
        lane_share: Runtime,
        observer: EngineObserver,
        thread_budget: ThreadBudget | None = None,
    ) -> None:
        """It computes with `all_threads` while all other lanes are idle, else with `lane_share`.

        `thread_budget` is shared with the lanes of other engines; None: there are no others.
        """
        self._number, self._scheduler, self._observer, self._thread_budget = number, scheduler, observer, thread_budget
        self._all_threads, self._lane_share = all_threads, lane_share
        self._runner = Runner(lane_share, scheduler.max_rows)
        self._rows = CompiledRows(self._runner, scheduler.max_rows) if lane_share.has_kernels else Rows(self._runner)
        self._jobs: list[Job] = []
        self._without_token: list[Job] = []  # those whose first token is still to come

    def loop(self) -> None:
        """Iterate until the scheduler ends; an exception in a step fails all jobs of the lane."""
        while self._scheduler.wait_for_work(self._number):
            try:
                self.iteration()
            except Exception:
                log.exception("a step failed; the requests in it get an error")
                self.fail_all(ServiceError("the server failed while decoding; the request may be sent again."))

    def iteration(self, most_steps: int = MAX_STEPS) -> None:
        seen = self._scheduler.changes.value
        admitted = self._admit()
        if self._jobs:
            with self._turn():
                if admitted:
                    self._encode(admitted)
                self._finish(self._step(seen, most_steps))

    def _turn(self) -> AbstractContextManager[None]:
        return nullcontext() if self._thread_budget is None else self._thread_budget.take(self._runner.threads)

    def replay(self, jobs: Sequence[Job], runtime: Runtime) -> None:
        """Decode jobs without the scheduler and the observer; only before `loop` has begun."""
        self._runner.set_runtime(runtime)
        self._jobs = list(jobs)
        with self._turn():
            self._rows.add(jobs)
        while self._jobs:
            with self._turn():
                done = self._rows.decode(StepLimits(MAX_STEPS, ctypes.c_int64(0), 0)).done
            self._forget(done)
            for job in done:
                job.complete(time.monotonic())

    def fail_all(self, error: Exception) -> None:
        """Every job leaves with this error, or with CancelledError if it was cancelled."""
        jobs, self._jobs, self._without_token = self._jobs, [], []
        self._rows.clear()
        self._scheduler.release(self._number, jobs)
        for job in jobs:
            job.fail(CancelledError() if job.cancelled else error)

    def _admit(self) -> list[Job]:
        """Drop jobs that were cancelled or have expired, and take those that are next."""
        now = time.monotonic()
        self._drop([job for job in self._jobs if job.cancelled or job.expired(now)], now)
        for job in self._scheduler.expire(now):
            job.drop(now)
        admitted = self._scheduler.admit(self._number, MAX_SOURCE_TOKENS if self._jobs else MAX_SOURCE_TOKENS_IDLE)
        self._runner.set_runtime(self._all_threads if self._scheduler.alone(self._number) else self._lane_share)
        self._jobs += admitted
        return admitted

    def _drop(self, jobs: list[Job], now: float) -> None:
        if not jobs:
            return
        self._rows.remove(jobs)
        self._release(jobs)
        for job in jobs:
            job.drop(now)

    def _encode(self, jobs: list[Job]) -> None:
        """Give new jobs their rows; their sources are encoded together, and with them some of waiting jobs."""
        started = time.monotonic()
        fresh = [job for job in jobs if job.encoded is None]
        fresh += self._encode_ahead(fresh)
        self._rows.add(jobs)
        ended = time.monotonic()
        for job in jobs:
            job.encode_started, job.decode_started = started, ended
        self._without_token += jobs
        tokens = sum(len(job.task.source) + 1 for job in fresh)
        self._observer.encoded([started - job.submitted for job in jobs], tokens, ended - started)

    def _encode_ahead(self, jobs: list[Job]) -> list[Job]:
        """Encode new jobs' sources together with those of some waiting jobs: per token, larger runs are cheaper.

        Returns those waiting jobs; if there are none, nothing is encoded here.
        """
        room = MAX_ENCODED_TOKENS - sum(len(job.task.source) + 1 for job in jobs)
        waiting = self._scheduler.begin_encoding(self._number, room) if jobs and self._rows.encodes_ahead else []
        if waiting:
            try:
                self._rows.encode_ahead([*jobs, *waiting])
            finally:
                self._scheduler.end_encoding(waiting)
        return waiting

    def _step(self, seen: int, most: int) -> list[Job]:
        """Decode one more token for every hypothesis; returns the jobs that are done or have failed.

        Up to `most` of them, while nobody waits and nothing has changed: `seen` is what the scheduler had counted of
        changes.
        """
        started = time.monotonic()
        limits = StepLimits(1 if self._scheduler.count_waiting() else most, self._scheduler.changes, seen)
        decoded = self._rows.decode(limits)
        for rows, seconds in decoded.steps:
            self._observer.stepped(rows, seconds)
        if self._without_token:
            self._report_first_tokens(started + decoded.steps[0][1])
        return decoded.done

    def _finish(self, done: list[Job]) -> None:
        now = time.monotonic()
        if done:
            self._release(done)
            for job in done:
                job.complete(now)

    def _release(self, jobs: list[Job]) -> None:
        """Jobs leave the lane and are no longer counted; their outcomes are delivered after this."""
        self._forget(jobs)
        self._scheduler.release(self._number, jobs)

    def _forget(self, jobs: list[Job]) -> None:
        left = set(jobs)
        self._jobs = [job for job in self._jobs if job not in left]
        if self._without_token:
            self._without_token = [job for job in self._without_token if job not in left]

    def _report_first_tokens(self, now: float) -> None:
        missing = []
        for job in self._without_token:
            if job.finished:  # its search has failed
                continue
            if self._rows.has_token(job):
                self._observer.first_token(now - job.submitted)
            else:
                missing.append(job)
        self._without_token = missing
