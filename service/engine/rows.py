"""Which row of the batch is whose: jobs get rows, hypotheses branch, jobs leave, and the rows stay dense."""

from __future__ import annotations

from collections.abc import Sequence

from export.bundle import LEAST_WIDTH
from service.engine.kv_cache import WIDTHS, round_up
from service.engine.runner import Session
from service.engine.scheduler import ENOUGH_TOKENS, Job
from service.engine.search import Row, agreed
from service.engine.tasks import Array, Ids

MOST_TOKENS = 256  # of sources in a run of the encoder: from so many on, more of them only take more memory
MOST_PADDED = 1.15  # of the tokens themselves


class StepCandidates:
    """The next tokens of every row of a step."""

    def __init__(self, ids: Array, logprobs: Array, everything: Array) -> None:
        self._ids, self._logprobs = ids.tolist(), logprobs.tolist()
        self._everything = everything
        self.rows = len(self._ids)

    def row(self, slot: int) -> Row:
        return Row(self._ids[slot], self._logprobs[slot], self._everything[slot])


def of_like_length(sources: Sequence[Ids]) -> list[list[Ids]]:
    """Sources, shortest first, in groups worth encoding together: more tokens pay up to some number, padding never."""
    groups: list[list[Ids]] = []
    tokens = 0  # in the last group
    for source in sources:
        length = len(source) + 1
        padded = (len(groups[-1]) + 1) * length if groups else 0
        fits = tokens < ENOUGH_TOKENS or (padded <= MOST_PADDED * (tokens + length) and tokens + length <= MOST_TOKENS)
        if groups and fits:
            groups[-1].append(source)
            tokens += length
        else:
            groups.append([source])
            tokens = length
    return groups


class Rows:
    def __init__(self, session: Session) -> None:
        self._session, self._memory = session, session.memory
        self._jobs: list[Job] = []
        self._count = 0  # rows

    def add(self, jobs: Sequence[Job]) -> None:
        """Encode the jobs' sources, those of like length together; each job gets one row."""
        held = self._count
        jobs = sorted(jobs, key=lambda job: len(job.task.source))
        needed = self._width(jobs)
        width = max(self._memory.width, needed) if held else needed
        for group in of_like_length([job.task.source for job in jobs]):
            self._session.encode(group, held, width)
            held += len(group)
        for job in jobs:
            job.slots = [self._count]
            self._jobs.append(job)
            self._count += 1
        self._memory.keep_rows([*range(self._count - len(jobs)), *[-1] * len(jobs)], self._longest())

    def step(self, jobs: Sequence[Job]) -> StepCandidates:
        """Extend every live hypothesis."""
        tokens, positions, lengths = [0] * self._count, [0] * self._count, [1] * self._count
        top = 1
        for job in jobs:
            search = job.search
            position, length = search.position, len(job.task.source) + 1
            job.cached = [live.ids for live in search.live]
            for slot, token in zip(job.slots, search.last_tokens(), strict=True):
                tokens[slot], positions[slot], lengths[slot] = token, position, length
            top = max(top, search.wanted())
        found = self._session.step(tokens, positions, lengths, min(top, self._session.sizes.target_vocab))
        return StepCandidates(found.top_ids, found.top_logprobs, found.logprobs)

    def follow(self, jobs: Sequence[Job], done: Sequence[Job]) -> None:
        """Hypotheses have branched and ended: the first child keeps its parent's row, others take free ones."""
        wanted: list[tuple[Job, int, int]] = []  # job, which of its hypotheses, the row it comes from
        leaving = set(map(id, done))
        for job in jobs:
            parents = [] if id(job) in leaving else job.parents
            wanted += [(job, i, job.slots[parent]) for i, parent in enumerate(parents)]
        origins, shared = self._assign(wanted)
        self._count, width = len(wanted), self._memory.width
        if done:
            self._jobs = [job for job in self._jobs if id(job) not in leaving]
            needed = self._width(self._jobs)
            width = needed if 2 * needed <= width else width
        self._memory.keep_rows(origins, self._longest(), shared, width)

    def _assign(self, wanted: list[tuple[Job, int, int]]) -> tuple[list[int], list[int]]:
        """Give every hypothesis a row under len(wanted).

        For each row, the one it comes from, and how many cached tokens it has in common with what was there before:
        two hypotheses of one job have the same cache up to where they parted.
        """
        count = len(wanted)
        origins, shared = [-1] * count, [0] * count
        homeless = []
        places: dict[int, list[int]] = {}
        for job, i, origin in wanted:
            places.setdefault(id(job), []).append(origin)
            if origin < count and origins[origin] == -1:
                origins[origin] = origin
            else:
                homeless.append((job, i, origin))
        jobs = {id(job): job for job, _, _ in wanted}.values()
        held = {slot: (job, ids) for job in jobs for slot, ids in zip(job.slots, job.cached, strict=False)}
        free = [slot for slot in range(count) if origins[slot] == -1]
        for (job, i, origin), slot in zip(homeless, free, strict=True):
            origins[slot], places[id(job)][i] = origin, slot
            before, now = held.get(slot), held.get(origin)
            if before and now and before[0] is now[0]:
                shared[slot] = 1 + agreed([before[1], now[1]])  # the start token, and what both began with
        for job in jobs:
            job.slots = places[id(job)]
        return origins, shared

    def remove(self, jobs: Sequence[Job]) -> None:
        """Jobs leave before they are done."""
        staying = [job for job in self._jobs if job not in jobs]
        for job in staying:
            job.parents = list(range(len(job.slots)))
        self.follow(staying, jobs)

    def clear(self) -> None:
        """Nothing is held any more."""
        self._jobs, self._count = [], 0
        self._memory.keep_rows([], 0)

    def padding(self) -> float:
        """The share of the places for sources in memory that hold no token."""
        places = self._count * self._memory.width
        tokens = sum(len(job.slots) * (len(job.task.source) + 1) for job in self._jobs)
        return 1 - tokens / places if places else 0.0

    def _longest(self) -> int:
        """The most tokens that any row has cached."""
        return max((job.search.position for job in self._jobs if job.search.live), default=0)

    @staticmethod
    def _width(jobs: Sequence[Job]) -> int:
        """Of the memory that these jobs' sources need."""
        return round_up(max([LEAST_WIDTH, *(len(job.task.source) + 1 for job in jobs)]), WIDTHS)
