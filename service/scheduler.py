"""Who waits, who runs, and who is next: bounded in tasks and tokens, first come first served. It knows no tensors."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from service.errors import CancelledError, InvalidFieldError, NotReadyError, QueueFullError
from service.search import GenerateSearch, NextTokenSearch, ScoreSearch
from service.tasks import Finished, Listener, Task

LONGEST_RETRY = 60  # seconds
RATE_MEMORY = 0.9  # the share that the past has in the measured rate


@dataclass(eq=False)
class Job:
    """One task on its way through the engine."""

    task: Task
    index: int  # among those submitted together
    listener: Listener
    deadline: float | None  # of time.monotonic()
    submitted: float
    search: GenerateSearch | ScoreSearch | NextTokenSearch
    slots: list[int] = field(default_factory=list)  # the rows of its live hypotheses
    parents: list[int] = field(default_factory=list)  # after a step: the hypotheses that its live ones continue
    cached: list[list[int]] = field(default_factory=list)  # the tokens whose cache is in each of its rows
    source: int = -1  # its place among the sources in memory
    encode_started: float = 0.0
    decode_started: float = 0.0
    told: int = 0  # tokens that its listener heard of
    steps: int = 0
    cancelled: bool = False
    finished: bool = False

    def is_gone(self, now: float) -> bool:
        """Whether no one waits for it any more, or its time is up."""
        return self.cancelled or (self.deadline is not None and now >= self.deadline)

    def finish(self, answer: object) -> None:
        """Tell of its one outcome."""
        if not self.finished:
            self.finished = True
            self.listener(Finished(self.index, answer))  # type: ignore[arg-type]


class Ticket:
    """What was submitted together, for whoever may give it up."""

    def __init__(self, jobs: Sequence[Job], scheduler: Scheduler) -> None:
        self._jobs, self._scheduler = jobs, scheduler

    def cancel(self) -> None:
        """Its rows leave at the next step; tasks without an answer get CancelledError."""
        for job in self._jobs:
            job.cancelled = True
        self._scheduler.wake()


class Scheduler:
    def __init__(self, max_rows: int, max_requests: int, max_tokens: int) -> None:
        self.max_rows, self.max_requests, self.max_tokens = max_rows, max_requests, max_tokens
        self.running: list[Job] = []
        self._waiting: deque[Job] = deque()
        self._waiting_tokens = 0
        self._closed = False
        self._changed = threading.Condition()
        self._rate = 0.0  # tokens of finished tasks a second, as they were priced
        self._rated = time.monotonic()

    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, jobs: Sequence[Job]) -> Ticket:
        """All or none."""
        cost, rows = sum(job.task.cost for job in jobs), max(job.task.rows for job in jobs)
        if rows > self.max_rows:
            raise InvalidFieldError(
                f"{rows} hypotheses at once are more than the {self.max_rows} that this server decodes together; "
                "ask for fewer.",
                "beam_size",
            )
        if cost > self.max_tokens or len(jobs) > self.max_requests:
            raise InvalidFieldError(
                f"the request could take {cost:,} tokens in {len(jobs):,} inputs, and the queue holds "
                f"{self.max_tokens:,} tokens in {self.max_requests:,} inputs; send fewer inputs, a smaller beam or a "
                "smaller max_length.",
                "inputs",
            )
        with self._changed:
            if self._closed:
                raise NotReadyError("the server is shutting down; send the request to another one.")
            full = len(self._waiting) + len(jobs) > self.max_requests or self._waiting_tokens + cost > self.max_tokens
            if full:
                retry = self.retry_after()
                raise QueueFullError(
                    f"the queue is full ({len(self._waiting):,} inputs wait); try again in {retry} s.", retry
                )
            self._waiting.extend(jobs)
            self._waiting_tokens += cost
            self._changed.notify()
        return Ticket(jobs, self)

    def retry_after(self) -> int:
        """Whole seconds until half of the queue is done, at the rate that was measured."""
        if not self._rate:
            return 1
        return min(LONGEST_RETRY, max(1, math.ceil(self._waiting_tokens / 2 / self._rate)))

    def wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def wait_for_work(self, timeout: float | None = None) -> bool:
        """Sleep until there is something to do; False if there never will be."""
        with self._changed:
            while not (self._waiting or self.running or self._closed):
                if not self._changed.wait(timeout):
                    return True
            return bool(self._waiting or self.running) or not self._closed

    def close(self) -> None:
        """Accept nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def admit(self, now: float, most_tokens: int) -> list[Job]:
        """The next jobs that fit: their rows, and source tokens that are encoded before the next step."""
        admitted: list[Job] = []
        rows, tokens = sum(job.task.rows for job in self.running), 0
        with self._changed:
            while self._waiting:
                job = self._waiting[0]
                gone, length = job.is_gone(now), len(job.task.source) + 1
                if not gone and (rows + job.task.rows > self.max_rows or (admitted and tokens + length > most_tokens)):
                    break
                self._waiting.popleft()
                self._waiting_tokens -= job.task.cost
                admitted.append(job)
                if not gone:
                    rows, tokens = rows + job.task.rows, tokens + length
        return admitted

    def finished(self, jobs: Sequence[Job], now: float) -> None:
        """Jobs leave; the rate is what they were priced at over the time they took."""
        left = set(map(id, jobs))
        self.running = [job for job in self.running if id(job) not in left]
        seconds, self._rated = max(now - self._rated, 1e-6), now
        rate = sum(job.task.cost for job in jobs) / seconds
        self._rate = rate if not self._rate else RATE_MEMORY * self._rate + (1 - RATE_MEMORY) * rate

    def abandon(self, error: Exception) -> list[Job]:
        """Everyone leaves without an answer."""
        with self._changed:
            jobs = [*self._waiting, *self.running]
            self._waiting.clear()
            self._waiting_tokens, self.running = 0, []
        for job in jobs:
            job.finish(CancelledError() if job.cancelled else error)
        return jobs
