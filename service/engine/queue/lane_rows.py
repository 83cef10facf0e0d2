"""The rows of the lanes, and who may have them.

Most rows of a lane are for all. The last are kept: half of them for requests that hold no rows, half for clients that
hold none, so that one request of many long texts, or one client of many requests, cannot take every row.
"""

from __future__ import annotations

from collections.abc import Sequence

from attendant.service.engine.batch.job import Job

KEPT_ROWS = 16  # of so many rows of a lane, one is kept for requests that hold none, and one for clients that hold none


class LaneRows:
    def __init__(self, lanes: int, max_rows: int) -> None:
        self.max_rows = max_rows  # of a lane
        self._kept = max_rows // KEPT_ROWS
        self.shared = max_rows - 2 * self._kept  # rows of a lane for all
        self.rows, self.jobs = [0] * lanes, [0] * lanes  # that each lane has admitted and not released
        self._kept_used = [0] * lanes

    def fits(self, lane: int, job: Job) -> bool:
        """Whether a job may join a lane; an empty one it always may."""
        if not self.rows[lane]:
            return True
        if self.is_too_wide(lane, job):
            return False
        needed, request = self._from_kept(lane, job), job.request
        allowed = 0 if request.rows else self._kept if request.client.rows else 2 * self._kept
        return not needed or self._kept_used[lane] + needed <= allowed

    def is_too_wide(self, lane: int, job: Job) -> bool:
        """Whether a job needs more rows than are free in a lane, kept ones included."""
        return self.rows[lane] + job.task.rows > self.max_rows

    def enter(self, lane: int, job: Job) -> None:
        job.kept_rows = self._from_kept(lane, job)
        self._kept_used[lane] += job.kept_rows
        self.rows[lane] += job.task.rows
        self.jobs[lane] += 1
        job.request.hold(job.task.rows)

    def leave(self, lane: int, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._kept_used[lane] -= job.kept_rows
            self.rows[lane] -= job.task.rows
            job.request.hold(-job.task.rows)
        self.jobs[lane] -= len(jobs)

    def _from_kept(self, lane: int, job: Job) -> int:
        """How many of a job's rows would be kept ones: as many as the shared ones do not suffice for."""
        if not self.rows[lane]:
            return 0
        free = self.shared - (self.rows[lane] - self._kept_used[lane])
        return max(0, job.task.rows - max(0, free))
