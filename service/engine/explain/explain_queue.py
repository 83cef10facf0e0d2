"""Jobs whose search is done and that wait for their explanation, or are being explained.

Each leaves with one outcome: at its turn, at its deadline or when it is cancelled, whichever comes first. That is so
wherever it is in the queue, and also while it is being computed: whoever takes a job out of here, under the lock,
delivers its outcome.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from attendant.service.engine.batch.job import Job
from attendant.service.engine.tasks import Generated, Scored


class ExplainQueue:
    def __init__(self) -> None:
        self._waiting: deque[tuple[Job, Generated | Scored]] = deque()
        self._current: Job | None = None  # the one that is being computed, while it has no outcome
        self._stop_run: Callable[[], None] | None = None  # of a job that is being computed
        self._closed = self._stopped = False
        self._changed = threading.Condition()

    def count(self) -> int:
        """Jobs that wait, and the one that is being computed."""
        return len(self._waiting) + (self._stop_run is not None)

    def add(self, job: Job, found: Generated | Scored) -> None:
        with self._changed:
            self._waiting.append((job, found))
            self._changed.notify_all()

    def wait(self) -> bool:
        """Sleep until a job waits; False if none will, or if it is stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed or self._stopped)
            return bool(self._waiting) and not self._stopped

    def begin(self, stop_run: Callable[[], None]) -> tuple[Job, Generated | Scored] | None:
        """Take the next job to compute it; `end` must be called afterwards.

        `stop_run` is called, within the lock, if the job leaves meanwhile.
        """
        self.drop_late()
        with self._changed:
            if not self._waiting:
                return None
            job, found = self._waiting.popleft()
            self._current, self._stop_run = job, stop_run
            self._changed.notify_all()  # whoever looks at deadlines looks at this one too
            return job, found

    def claim(self, job: Job) -> bool:
        """Whether the caller delivers this job's outcome; False if it has one."""
        with self._changed:
            claimed, self._current = self._current is job, None
            return claimed

    def is_wanted(self, job: Job) -> bool:
        """Whether the job that is being computed has no outcome yet."""
        return self._current is job

    def end(self) -> None:
        with self._changed:
            self._current = self._stop_run = None

    def drop_late(self) -> None:
        """Jobs that are past their deadline or were cancelled get their outcome, in this thread."""
        now = time.monotonic()
        with self._changed:
            late = self._take_late(now)
        for job in late:
            job.drop(now)

    def watch_deadlines(self) -> None:
        """Drop jobs as they become late, until it is stopped."""
        while True:
            self.drop_late()
            with self._changed:
                if self._stopped:
                    return
                jobs = [*(job for job, _ in self._waiting), *filter(None, [self._current])]
                if any(job.cancelled for job in jobs):
                    continue
                deadlines = [job.deadline for job in jobs if job.deadline is not None]
                seconds = min(deadlines) - time.monotonic() if deadlines else None
                if seconds is None or seconds > 0:
                    self._changed.wait(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))

    def notice_cancelled(self) -> None:
        """Some job may have been cancelled."""
        with self._changed:
            self._changed.notify_all()

    def _take_late(self, now: float) -> list[Job]:
        late = [job for job, _ in self._waiting if _is_late(job, now)]
        if late:
            self._waiting = deque(pair for pair in self._waiting if pair[0] not in late)
        if self._current is not None and self._stop_run is not None and _is_late(self._current, now):
            late.append(self._current)
            self._current = None
            self._stop_run()
        return late

    def close(self) -> None:
        """Nothing more will be added."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Nothing more is computed."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def drain(self) -> list[Job]:
        """Take out all that wait."""
        with self._changed:
            jobs = [job for job, _ in self._waiting]
            self._waiting.clear()
            return jobs


def _is_late(job: Job, now: float) -> bool:
    return job.cancelled or job.expired(now)
