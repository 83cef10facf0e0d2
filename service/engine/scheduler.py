"""The queue, bounded in tasks and tokens, first come first served; and which lane takes the next job.

Few rows share one lane, which may then use every processor; many rows are spread evenly over all lanes. The scheduler
knows no tensors; of the jobs in a lane it knows only how many there are and how many rows they may occupy.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from service.engine.job import Job
from service.engine.throughput import Throughput
from service.errors import InvalidFieldError, NotReadyError, QueueFullError

MAX_RETRY_SECONDS = 60
EXPIRY_INTERVAL = 0.01  # least seconds between two checks of the deadlines of waiting jobs
ENOUGH_SOURCE_TOKENS = 24  # in a run of the encoder; beyond this, adding another source to it saves little
WORTH_ADMITTING = 0.25  # of a lane's rows; fewer new ones, with under ENOUGH_SOURCE_TOKENS, wait a while for more
MAX_HELD_ITERATIONS = 3  # the most iterations that they wait
ROWS_PER_LANE = 12  # for so many rows one more lane pays, although every lane reads all weights at each step


class SubmittedJobs:
    """Jobs that were submitted together; the engine's implementation of `Submission`."""

    def __init__(self, jobs: Sequence[Job], scheduler: Scheduler) -> None:
        self._jobs, self._scheduler = jobs, scheduler

    def cancel(self) -> None:
        """Waiting jobs leave the queue at once, running ones after their current step."""
        self._scheduler.cancel(self._jobs)


class Scheduler:
    def __init__(
        self,
        lanes: int,
        max_rows: int,
        max_requests: int,
        max_tokens: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_rows, self.max_requests, self.max_tokens = max_rows, max_requests, max_tokens  # rows: per lane
        self._clock = clock
        self._rows, self._jobs = [0] * lanes, [0] * lanes  # that each lane has admitted and not released
        self._held = [0] * lanes  # for how many iterations each lane has held jobs back
        self._waiting: OrderedDict[Job, None] = OrderedDict()
        self._waiting_tokens = self._waiting_rows = 0
        self._next_expiry = math.inf  # a lower bound of the deadlines of waiting jobs
        self._closed = self._stopped = False
        self._lock = threading.Lock()
        self._work_changed = threading.Condition(self._lock)
        self._expiry_changed = threading.Condition(self._lock)
        self._throughput = Throughput()

    def count_waiting(self) -> int:
        return len(self._waiting)

    def count_waiting_tokens(self) -> int:
        return self._waiting_tokens

    def count_running(self) -> int:
        return sum(self._jobs)

    def alone(self, lane: int) -> bool:
        """Whether no other lane has anything to do."""
        return sum(self._jobs) == self._jobs[lane]

    def submit(self, jobs: Sequence[Job]) -> SubmittedJobs:
        """Queue all jobs; or none, and raise InvalidFieldError, QueueFullError or NotReadyError."""
        tokens = sum(job.task.token_budget for job in jobs)
        self._check_fits(jobs, tokens)
        with self._lock:
            if self._closed:
                raise NotReadyError("the server is shutting down; send the request to another one.")
            waiting = len(self._waiting)
            if waiting + len(jobs) > self.max_requests or self._waiting_tokens + tokens > self.max_tokens:
                retry = self._retry_after()
                raise QueueFullError(f"the queue is full ({waiting:,} inputs wait); try again in {retry} s.", retry)
            self._waiting.update(dict.fromkeys(jobs))
            self._waiting_tokens += tokens
            self._waiting_rows += sum(job.task.rows for job in jobs)
            self._measure_throughput()
            deadline = min((job.deadline for job in jobs if job.deadline is not None), default=math.inf)
            if deadline < self._next_expiry:
                self._next_expiry = deadline
                self._expiry_changed.notify()
            self._work_changed.notify_all()
        return SubmittedJobs(jobs, self)

    def _check_fits(self, jobs: Sequence[Job], tokens: int) -> None:
        rows = max((job.task.rows for job in jobs), default=0)
        if rows > self.max_rows:
            raise InvalidFieldError(
                f"{rows} hypotheses are asked for, more than the {self.max_rows} that this server decodes together.",
                "beam_size",
            )
        if tokens > self.max_tokens or len(jobs) > self.max_requests:
            raise InvalidFieldError(
                f"this request may take {tokens:,} tokens in {len(jobs):,} inputs, and the whole queue holds "
                f"{self.max_tokens:,} tokens in {self.max_requests:,} inputs; send fewer inputs, a smaller beam or a "
                "smaller max_length.",
                "inputs",
            )

    def retry_after(self) -> int:
        """Whole seconds, 1 to MAX_RETRY_SECONDS, in which half of the queue is done at the measured rate."""
        with self._lock:
            return self._retry_after()

    def _retry_after(self) -> int:
        rate = self._throughput.rate(self._clock())
        return min(MAX_RETRY_SECONDS, max(1, math.ceil(self._waiting_tokens / 2 / rate))) if rate else 1

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Mark jobs as cancelled; those that wait get their outcome here, in this thread."""
        with self._lock:
            for job in jobs:
                job.cancelled = True
            waiting = [job for job in jobs if job in self._waiting]
            self._remove(waiting)
        for job in waiting:
            job.drop(self._clock())

    def expire(self, now: float) -> list[Job]:
        """Remove the waiting jobs whose deadline has passed, and return them without an outcome."""
        if now < self._next_expiry:
            return []
        with self._lock:
            expired = [job for job in self._waiting if job.expired(now)]
            self._remove(expired)
            deadlines = (job.deadline for job in self._waiting if job.deadline is not None)
            self._next_expiry = min(deadlines, default=math.inf)
        return expired

    def wait_for_expiry(self) -> bool:
        """Sleep until the deadline of a waiting job may have passed; False if the lanes have been stopped."""
        with self._lock:
            self._expiry_changed.wait_for(lambda: self._stopped, EXPIRY_INTERVAL)
            while not self._stopped and self._clock() < self._next_expiry:
                seconds = self._next_expiry - self._clock()
                self._expiry_changed.wait(min(seconds, threading.TIMEOUT_MAX))
            return not self._stopped

    def wait_for_work(self, lane: int) -> bool:
        """Sleep until a lane has something to do; False if it never will."""
        with self._lock:
            while not self._stopped and not self._jobs[lane]:
                if self._share(lane) and not all(job.encoding for job in self._waiting):
                    return True
                if self._closed and not self._waiting:
                    return False
                self._work_changed.wait()
            return not self._stopped

    def close(self) -> None:
        """Accept nothing more."""
        with self._lock:
            self._closed = True
            self._work_changed.notify_all()

    def stop(self) -> None:
        """Lanes end after their current step."""
        with self._lock:
            self._stopped = True
            self._work_changed.notify_all()
            self._expiry_changed.notify_all()

    def admit(self, lane: int, max_source_tokens: int) -> list[Job]:
        """Take the next jobs for a lane: as many as its rows and, except for the first, `max_source_tokens` allow."""
        admitted: list[Job] = []
        with self._lock:
            rows, tokens, share = self._rows[lane], 0, self._share(lane)
            if self._hold(lane, rows, min(self._waiting_rows, share - rows)):
                return []
            for job in self._waiting:
                if job.encoding:
                    continue
                length = len(job.task.source) + 1 if job.encoded is None else 0
                if rows >= share or rows + job.task.rows > self.max_rows:
                    break
                if admitted and tokens + length > max_source_tokens:
                    break
                admitted.append(job)
                rows, tokens = rows + job.task.rows, tokens + length
            self._rows[lane] = rows
            self._jobs[lane] += len(admitted)
            self._remove(admitted)
        return admitted

    def begin_encoding(self, lane: int, tokens: int) -> list[Job]:
        """Choose waiting jobs whose sources, of at most `tokens` together, a lane encodes while they stay queued.

        Until `end_encoding` no lane admits them, and later jobs may be admitted before them. Jobs for which other
        lanes have free rows are not chosen.
        """
        chosen = []
        with self._lock:
            free = sum(self.max_rows - rows for other, rows in enumerate(self._rows) if other != lane)
            for job in self._waiting:
                free -= job.task.rows
                if free >= 0 or job.encoding or job.encoded is not None:
                    continue
                tokens -= len(job.task.source) + 1
                if tokens < 0:
                    break
                job.encoding = True
                chosen.append(job)
        return chosen

    def end_encoding(self, jobs: Sequence[Job]) -> None:
        with self._lock:
            for job in jobs:
                job.encoding = False
            self._work_changed.notify_all()  # sleeping lanes may admit them

    def _remove(self, jobs: Sequence[Job]) -> None:
        """Take jobs out of the queue."""
        if not jobs:
            return
        for job in jobs:
            del self._waiting[job]
            self._waiting_tokens -= job.task.token_budget
            self._waiting_rows -= job.task.rows
        self._measure_throughput()
        if (self._closed and not self._waiting) or not self._fits_in_busy_lane():
            self._work_changed.notify_all()  # sleeping lanes may end, or admit the job that is next now

    def _measure_throughput(self) -> None:
        """Only while jobs wait: the throughput of lanes that lack work is below what they can do."""
        if self._waiting:
            self._throughput.resume(self._clock())
        else:
            self._throughput.pause(self._clock())

    def _hold(self, lane: int, rows: int, joining: int) -> bool:
        """Whether waiting jobs are held back from a lane for some iterations, since too few rows would join it."""
        tokens = itertools.accumulate(len(job.task.source) + 1 for job in self._waiting)
        few = 0 < joining < WORTH_ADMITTING * rows and all(count < ENOUGH_SOURCE_TOKENS for count in tokens)
        few = few and next(iter(self._waiting)).encoded is None
        self._held[lane] = self._held[lane] + 1 if few else 0
        if self._held[lane] > MAX_HELD_ITERATIONS:
            self._held[lane] = 0
        return self._held[lane] > 0

    def _share(self, lane: int) -> int:
        """A lane admits another job while it has fewer rows than this; 0: it should admit none."""
        rows = self._rows
        total = sum(rows) + self._waiting_rows
        needed = -(-total // self.max_rows)
        wanted = max(1, min(len(rows), max(needed, total // ROWS_PER_LANE)))
        if wanted == 1:
            return total if lane == rows.index(max(rows)) else 0
        if not rows[lane] and sum(map(bool, rows)) >= wanted and self._fits_in_busy_lane():
            return 0
        return -(-total // wanted)

    def _fits_in_busy_lane(self) -> bool:
        """Whether the next job, if there is one, fits in the busy lane with the fewest rows."""
        job = next((job for job in self._waiting if not job.encoding), None)
        return job is None or min(filter(None, self._rows), default=0) + job.task.rows <= self.max_rows

    def release(self, lane: int, jobs: Sequence[Job]) -> None:
        """Jobs have left a lane."""
        with self._lock:
            self._jobs[lane] -= len(jobs)
            self._rows[lane] -= sum(job.task.rows for job in jobs)
            self._throughput.add(sum(job.task.token_budget for job in jobs), self._clock())
            if self._closed or (self._waiting and len(self._jobs) > 1):
                self._work_changed.notify_all()  # the next job may now be for a lane that sleeps

    def drain(self) -> list[Job]:
        """Take every job out of the queue."""
        with self._lock:
            jobs = list(self._waiting)
            self._remove(jobs)
        return jobs
