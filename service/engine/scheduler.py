"""Who waits, who runs in which lane, and who is next: bounded in tasks and tokens, first come first served.

A lane is a batch with a thread of its own. Few rows share one lane, which may then use every processor; many rows are
spread evenly over all lanes. It knows no tensors.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from service.engine.beam import GenerateSearch
from service.engine.search import NextTokenSearch, ScoreSearch
from service.engine.tasks import EventCallback, Finished, Task
from service.errors import CancelledError, InvalidFieldError, NotReadyError, QueueFullError

LONGEST_RETRY = 60  # seconds
RATE_MEMORY = 0.9  # the share that the past has in the measured rate
ENOUGH_TOKENS = 24  # of sources in a run of the encoder: from so many on, another source in it saves little
WORTH_ADMITTING = 0.25  # of a lane's rows: fewer, with fewer tokens than these, wait some steps for others
LONGEST_HELD = 3  # steps
ROWS_FOR_A_LANE = 12  # so many rows make another lane worth its reading of all weights


@dataclass(eq=False)
class Job:
    """One task on its way through the engine."""

    task: Task
    index: int  # among those submitted together
    on_event: EventCallback
    deadline: float | None  # of time.monotonic()
    submitted: float
    search: GenerateSearch | ScoreSearch | NextTokenSearch
    slots: list[int] = field(default_factory=list)  # the rows of its live hypotheses
    parents: list[int] = field(default_factory=list)  # after a step: the hypotheses that its live ones continue
    cached: list[list[int]] = field(default_factory=list)  # the tokens whose cache is in each of its rows
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
            self.on_event(Finished(self.index, answer))  # type: ignore[arg-type]


class SubmittedJobs:
    """Jobs that were submitted together: what `Submission` is to whoever submitted them."""

    def __init__(self, jobs: Sequence[Job], scheduler: Scheduler) -> None:
        self._jobs, self._scheduler = jobs, scheduler

    def cancel(self) -> None:
        """Its rows leave at the next step; tasks without an answer get CancelledError."""
        for job in self._jobs:
            job.cancelled = True
        self._scheduler.wake()


class Scheduler:
    def __init__(self, lanes: int, max_rows: int, max_requests: int, max_tokens: int) -> None:
        self.max_rows, self.max_requests, self.max_tokens = max_rows, max_requests, max_tokens  # rows: of a lane
        self.running: list[list[Job]] = [[] for _ in range(lanes)]
        self._held = [0] * lanes  # turns since jobs could have joined
        self._waiting: deque[Job] = deque()
        self._waiting_tokens = self._waiting_rows = 0
        self._closed = self._stopped = False
        self._changed = threading.Condition()
        self._rate = 0.0  # tokens of finished tasks a second, as they were priced
        self._rated = time.monotonic()

    def waiting(self) -> int:
        return len(self._waiting)

    def count(self) -> int:
        """Jobs in all lanes."""
        return sum(map(len, self.running))

    def alone(self, lane: int) -> bool:
        """Whether no other lane has anything to do."""
        return not any(jobs for other, jobs in enumerate(self.running) if other != lane)

    def submit(self, jobs: Sequence[Job]) -> SubmittedJobs:
        """All or none."""
        cost, rows = sum(job.task.token_budget for job in jobs), max(job.task.rows for job in jobs)
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
            self._waiting_rows += sum(job.task.rows for job in jobs)
            self._changed.notify_all()
        return SubmittedJobs(jobs, self)

    def retry_after(self) -> int:
        """Whole seconds until half of the queue is done, at the rate that was measured."""
        if not self._rate:
            return 1
        return min(LONGEST_RETRY, max(1, math.ceil(self._waiting_tokens / 2 / self._rate)))

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def wait_for_work(self, lane: int) -> bool:
        """Sleep until a lane has something to do; False if it never will."""
        with self._changed:
            while not self._stopped and not self.running[lane]:
                if self._waiting and self._share(lane):
                    return True
                if self._closed and not self._waiting:
                    return False
                self._changed.wait()
            return not self._stopped

    def close(self) -> None:
        """Accept nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Lanes end after the step that they are in."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def admit(self, lane: int, now: float, most_tokens: int) -> tuple[list[Job], list[Job]]:
        """The next jobs for a lane: their rows fit, and so do the source tokens encoded before its next step.

        Beside them those that no one waits for any more, or whose time is up, which do not run.
        """
        admitted: list[Job] = []
        passed: list[Job] = []
        rows, tokens = self._rows(lane), 0
        with self._changed:
            share = self._share(lane)
            if self._hold(lane, rows, min(self._waiting_rows, share - rows)):
                return [], []
            while self._waiting:
                job = self._waiting[0]
                gone, length = job.is_gone(now), len(job.task.source) + 1
                fits = rows < share and rows + job.task.rows <= self.max_rows
                if not gone and (not fits or (admitted and tokens + length > most_tokens)):
                    break
                self._waiting.popleft()
                self._waiting_tokens -= job.task.token_budget
                self._waiting_rows -= job.task.rows
                if gone:
                    passed.append(job)
                    continue
                admitted.append(job)
                rows, tokens = rows + job.task.rows, tokens + length
            self.running[lane] += admitted
            if self._closed and not self._waiting:
                self._changed.notify_all()  # lanes that sleep may end
        return admitted, passed

    def _hold(self, lane: int, rows: int, joining: int) -> bool:
        """Whether so few rows would join a lane that they had better wait for others."""
        tokens = itertools.accumulate(len(job.task.source) + 1 for job in self._waiting)
        few = 0 < joining < WORTH_ADMITTING * rows and all(count < ENOUGH_TOKENS for count in tokens)
        self._held[lane] = self._held[lane] + 1 if few else 0
        if self._held[lane] > LONGEST_HELD:
            self._held[lane] = 0
        return self._held[lane] > 0

    def _rows(self, lane: int) -> int:
        return sum(job.task.rows for job in self.running[lane])

    def _share(self, lane: int) -> int:
        """The rows up to which a lane takes another job; 0 for one that should stay idle."""
        rows = [self._rows(other) for other in range(len(self.running))]
        total = sum(rows) + self._waiting_rows
        needed = -(-total // self.max_rows)
        wanted = max(1, min(len(rows), max(needed, total // ROWS_FOR_A_LANE)))
        if wanted == 1:
            return total if lane == rows.index(max(rows)) else 0
        if not rows[lane] and sum(map(bool, rows)) >= wanted:
            return 0
        return -(-total // wanted)

    def finished(self, lane: int, jobs: Sequence[Job], now: float) -> None:
        """Jobs leave; the rate is what they were priced at over the time they took."""
        left = set(map(id, jobs))
        with self._changed:
            self.running[lane] = [job for job in self.running[lane] if id(job) not in left]
            seconds, self._rated = max(now - self._rated, 1e-6), now
            rate = sum(job.task.token_budget for job in jobs) / seconds
            self._rate = rate if not self._rate else RATE_MEMORY * self._rate + (1 - RATE_MEMORY) * rate
            if self._closed or (self._waiting and len(self.running) > 1):
                self._changed.notify_all()  # what is next may now be for a lane that sleeps

    def abandon(self, error: Exception) -> None:
        """Everyone leaves without an answer."""
        with self._changed:
            jobs = [*self._waiting, *(job for lane in self.running for job in lane)]
            self._waiting.clear()
            self._waiting_tokens = self._waiting_rows = 0
            self.running = [[] for _ in self.running]
            self._changed.notify_all()
        for job in jobs:
            job.finish(CancelledError() if job.cancelled else error)
