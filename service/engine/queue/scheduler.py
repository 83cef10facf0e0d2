"""The queue, bounded in tasks and tokens (`door.py`), and which lane takes the next job, whose turn `fair.py` knows.

Few rows share one lane, which may then use every processor; many rows are spread evenly over all lanes. The last rows
of a lane are kept for requests that hold none, so that one of many long texts does not lock out those that come after
it. The scheduler knows no tensors; of the jobs in a lane it knows only how many there are and how many rows they may
occupy.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence

from attendant.service.engine.batch.job import Job
from attendant.service.engine.queue.door import Door
from attendant.service.engine.queue.fair import FairQueue, Request
from attendant.service.engine.queue.lane_rows import LaneRows
from attendant.service.engine.queue.throughput import Throughput
from attendant.service.engine.tasks import Explain
from attendant.service.errors import InvalidFieldError, NotReadyError, QueueFullError

MAX_RETRY_SECONDS = 60
EXPIRY_INTERVAL = 0.01  # least seconds between two checks of the deadlines of waiting jobs
ENOUGH_SOURCE_TOKENS = 24  # in a run of the encoder; beyond this, adding another source to it saves little
WORTH_ADMITTING = 0.25  # of a lane's rows; fewer new ones, with under ENOUGH_SOURCE_TOKENS, wait a while for more
MAX_HELD_ITERATIONS = 3  # the most iterations that they wait
ROWS_PER_LANE = 12  # for so many rows one more lane pays, although every lane reads all weights at each step
MAX_AHEAD_TOKENS = 2048  # of sources that are encoded before their jobs have rows
MAX_PASSED = 64  # jobs that may be admitted before one whose turn it is but that needs more rows than are free
MAX_PASSED_REQUESTS = 32  # of which the turn is passed in one iteration
MAX_EXPLAINING_ROWS = 16  # in all lanes, or one explanation's: what they record is Python in every step


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
        self.max_rows, self.max_requests = max_rows, max_requests  # rows: per lane
        self._clock = clock
        self._lanes = LaneRows(lanes, max_rows)
        self._held = [0] * lanes  # for how many iterations each lane has held jobs back
        self._explaining = 0  # rows of explanations in all lanes
        self._waiting, self._door = FairQueue(), Door(max_requests, max_tokens)
        self._next_expiry = math.inf  # a lower bound of the deadlines of waiting jobs
        self._closed = self._stopped = False
        self._lock = threading.Lock()
        self._wake = [threading.Condition(self._lock) for _ in range(lanes)]
        self._asleep: set[int] = set()  # lanes that wait for work
        self._expiry_changed = threading.Condition(self._lock)
        self._throughput = Throughput()
        # Counted up whenever lanes that are at work should look around; compiled code reads it between steps.
        self.changes = ctypes.c_int64(0)

    def count_waiting(self) -> int:
        return len(self._waiting)

    def count_waiting_tokens(self) -> int:
        return self._waiting.tokens

    def count_running(self) -> int:
        return sum(self._lanes.jobs)

    def alone(self, lane: int) -> bool:
        """Whether no other lane has anything to do."""
        return sum(self._lanes.jobs) == self._lanes.jobs[lane]

    def submit(self, jobs: Sequence[Job], client: str | None = None) -> SubmittedJobs:
        """Queue all jobs; or none, and raise InvalidFieldError, QueueFullError or NotReadyError.

        `client` names whoever sent them, which shares rows with others; None: unknown, so like no other.
        """
        tokens = sum(job.task.token_budget for job in jobs)
        self._check_fits(jobs)
        with self._lock:
            if self._closed:
                raise NotReadyError("the server is shutting down; send the request to another one.")
            request = Request(self._waiting.client(client), self._door.is_large(len(jobs), tokens))
            self._check_room(request, len(jobs), tokens)
            self._waiting.add(jobs, request)
            line = self._door.line(request.large)
            line.texts, line.tokens = line.texts + len(jobs), line.tokens + tokens
            self._measure_throughput()
            deadline = min((job.deadline for job in jobs if job.deadline is not None), default=math.inf)
            if deadline < self._next_expiry:
                self._next_expiry = deadline
                self._expiry_changed.notify()
            self._changed()
        return SubmittedJobs(jobs, self)

    def _changed(self) -> None:
        """Lanes that sleep may have work now, and those at work look around after their step."""
        self.changes.value += 1
        self._wake_lanes()

    def _wake_lanes(self) -> None:
        """Wake those that have something to do, and no others: each wake-up takes the time of a small step."""
        for lane in self._asleep:
            if self._stopped or (self._closed and not self._waiting) or self._should_admit(lane):
                self._wake[lane].notify()

    def _should_admit(self, lane: int) -> bool:
        return bool(self._share(lane)) and self._next() is not None

    def _check_fits(self, jobs: Sequence[Job]) -> None:
        rows = max((job.task.rows for job in jobs), default=0)
        if rows > self.max_rows:
            raise InvalidFieldError(
                f"{rows} hypotheses are asked for, more than the {self.max_rows} that this server decodes together.",
                "beam_size",
            )
        if len(jobs) > self.max_requests:
            raise InvalidFieldError(
                f"this request has {len(jobs):,} inputs, and the whole queue holds {self.max_requests:,}; send fewer.",
                "inputs",
            )

    def _check_room(self, request: Request, texts: int, tokens: int) -> None:
        """A known client that has nothing in the queue is let in even if others have filled it."""
        if self._door.has_room(texts, tokens) or (request.client.known and not request.client.waiting):
            return
        retry = self._retry_after(request.large)
        raise QueueFullError(f"the queue is full ({len(self._waiting):,} inputs wait); try again in {retry} s.", retry)

    def retry_after(self, large: bool = False) -> int:
        """Whole seconds, 1 to MAX_RETRY_SECONDS, in which half of a kind that waits is done at the measured rate."""
        with self._lock:
            return self._retry_after(large)

    def _retry_after(self, large: bool) -> int:
        rate, tokens = self._throughput.rate(self._clock()), self._door.line(large).tokens
        return min(MAX_RETRY_SECONDS, max(1, math.ceil(tokens / 2 / rate))) if rate else 1

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Mark jobs as cancelled; those that wait get their outcome here, in this thread."""
        with self._lock:
            self.changes.value += 1
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
            while not self._stopped and not self._lanes.jobs[lane]:
                if self._should_admit(lane):
                    return True
                if self._closed and not self._waiting:
                    return False
                self._asleep.add(lane)
                self._wake[lane].wait()
                self._asleep.discard(lane)
            return not self._stopped

    def close(self) -> None:
        """Accept nothing more."""
        with self._lock:
            self._closed = True
            self._changed()

    def stop(self) -> None:
        """Lanes end after their current step."""
        with self._lock:
            self._stopped = True
            self._changed()
            self._expiry_changed.notify_all()

    def admit(self, lane: int, max_source_tokens: int) -> list[Job]:
        """Take the next jobs for a lane: as many as its rows and, except for the first, `max_source_tokens` allow."""
        admitted: list[Job] = []
        if not self._waiting:  # as most often; what is submitted meanwhile is admitted at the next iteration
            self._held[lane] = 0
            return admitted
        with self._lock:
            tokens, share = 0, self._share(lane)
            if self._hold(lane, self._lanes.rows[lane], min(self._waiting.rows, share - self._lanes.rows[lane])):
                return []
            passed: dict[Request, bool] = {}  # and whether it waits for more rows than are free
            while self._lanes.rows[lane] < share and (job := self._next(passed)) is not None:
                if not self._lanes.fits(lane, job):
                    if not self._may_pass(lane, job, passed):
                        break
                    continue
                length = len(job.task.source) + 1 if job.encoded is None else 0
                if (job.request.rows and any(passed.values())) or (admitted and tokens + length > max_source_tokens):
                    break
                tokens += length
                admitted.append(job)
                self._enter(lane, job)
                for request, waits in passed.items():
                    request.passed += waits
            self._removed(bool(admitted))
        return admitted

    def _enter(self, lane: int, job: Job) -> None:
        """A job leaves the queue for a lane."""
        self._take_out(job)
        self._lanes.enter(lane, job)
        job.request.passed = 0
        self._explaining += _explaining_rows(job)

    def _may_pass(self, lane: int, job: Job, passed: dict[Request, bool]) -> bool:
        """Whether others may be admitted to a lane before a job that does not fit into it, which is noted.

        A request that holds rows has its share, and what is left is kept for others. For one that holds none and needs
        more rows than are free, rows are saved: only requests that hold none are let before it, and only so many.
        """
        request = job.request
        waits = passed[request] = not request.rows and self._lanes.is_too_wide(lane, job)
        return len(passed) <= MAX_PASSED_REQUESTS and not (waits and request.passed >= MAX_PASSED)

    def begin_encoding(self, lane: int, tokens: int) -> list[Job]:
        """Choose waiting jobs whose sources, of at most `tokens` together, a lane encodes while they stay queued.

        Until `end_encoding` no lane admits them, and later jobs may be admitted before them. Jobs for which other
        lanes have free rows are not chosen.
        """
        chosen, ahead = [], MAX_AHEAD_TOKENS
        with self._lock:
            free = sum(self._lanes.shared - rows for other, rows in enumerate(self._lanes.rows) if other != lane)
            for job in self._waiting:
                free -= job.task.rows
                if free >= 0:
                    continue
                length = len(job.task.source) + 1
                ahead -= length
                tokens -= 0 if job.encoding or job.encoded is not None else length
                if min(tokens, ahead) < 0:
                    break
                if not job.encoding and job.encoded is None:
                    job.encoding = True
                    chosen.append(job)
        return chosen

    def end_encoding(self, jobs: Sequence[Job]) -> None:
        with self._lock:
            for job in jobs:
                job.encoding = False
            self._wake_lanes()  # which may admit them

    def _remove(self, jobs: Sequence[Job]) -> None:
        """Take jobs out of the queue."""
        for job in jobs:
            self._take_out(job)
        self._removed(bool(jobs))

    def _take_out(self, job: Job) -> None:
        self._waiting.remove(job)
        line = self._door.line(job.request.large)
        line.texts, line.tokens = line.texts - 1, line.tokens - job.task.token_budget

    def _removed(self, any_job: bool) -> None:
        """After jobs were taken out of the queue."""
        if not any_job:
            return
        self._measure_throughput()
        if (self._closed and not self._waiting) or not self._fits_in_busy_lane():
            self._wake_lanes()  # which may end, or admit the job that is next now

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
        few = few and ((job := self._next()) is None or job.encoded is None)
        self._held[lane] = self._held[lane] + 1 if few else 0
        if self._held[lane] > MAX_HELD_ITERATIONS:
            self._held[lane] = 0
        return self._held[lane] > 0

    def _share(self, lane: int) -> int:
        """A lane admits another job while it has fewer rows than this; 0: it should admit none."""
        rows = self._lanes.rows
        total = sum(rows) + self._waiting.rows
        needed = -(-total // self._lanes.shared)
        wanted = max(1, min(len(rows), max(needed, total // ROWS_PER_LANE)))
        if wanted == 1:
            return total if lane == rows.index(max(rows)) else 0
        if not rows[lane] and sum(map(bool, rows)) >= wanted and self._fits_in_busy_lane():
            return 0
        return -(-total // wanted)

    def _fits_in_busy_lane(self) -> bool:
        """Whether the next job, if there is one, fits in the busy lane with the fewest rows."""
        job, busy = self._next(), [lane for lane, rows in enumerate(self._lanes.rows) if rows]
        return job is None or not busy or self._lanes.fits(min(busy, key=self._lanes.rows.__getitem__), job)

    def _next(self, passed: Collection[Request] = ()) -> Job | None:
        return self._waiting.next(self._is_ready, passed)

    def _is_ready(self, job: Job) -> bool:
        """Whether a lane may take a waiting job, if it has the rows."""
        if job.encoding:
            return False
        rows = _explaining_rows(job)
        return not rows or not self._explaining or self._explaining + rows <= MAX_EXPLAINING_ROWS

    def release(self, lane: int, jobs: Sequence[Job]) -> None:
        """Jobs have left a lane."""
        with self._lock:
            self._lanes.leave(lane, jobs)
            self._explaining -= sum(map(_explaining_rows, jobs))
            self._throughput.add(sum(job.task.token_budget for job in jobs), self._clock())
            if self._closed or (self._waiting and len(self._lanes.jobs) > 1):
                self._wake_lanes()  # the next job may now be for one that sleeps

    def drain(self) -> list[Job]:
        """Take every job out of the queue."""
        with self._lock:
            jobs = list(self._waiting)
            self._remove(jobs)
        return jobs


def _explaining_rows(job: Job) -> int:
    return job.task.rows if isinstance(job.task, Explain) else 0
