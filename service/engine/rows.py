"""Which row of the batch is whose: jobs get rows, hypotheses branch, jobs leave, and the rows stay dense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from export.bundle import LEAST_WIDTH
from service.engine.job import Job
from service.engine.kv_cache import NEW_ROW, WIDTH_UNIT, round_up
from service.engine.runner import MAX_GRAPH_TOP_K, Runner, StepOutputs
from service.engine.scheduler import ENOUGH_SOURCE_TOKENS
from service.engine.search import Live, Row, common_prefix
from service.engine.tasks import Ids

MAX_ENCODED_TOKENS = 256  # in a run of the encoder: from so many on, more of them only take more memory
MAX_PADDED = 1.15  # tokens of a group with its padding, over those without


class StepCandidates:
    """The next tokens of every row of a step."""

    def __init__(self, outputs: StepOutputs, slots: Mapping[Job, list[int]]) -> None:
        self._ids, self._logprobs = outputs.top_ids.tolist(), outputs.top_logprobs.tolist()
        self._all, self._slots = outputs.logprobs, slots
        self.rows = len(self._ids)

    def of(self, job: Job) -> list[Row]:
        """Those of each live hypothesis of a job."""
        return [Row(self._ids[slot], self._logprobs[slot], self._all[slot]) for slot in self._slots[job]]


def group_by_length(sources: Sequence[Ids]) -> list[list[Ids]]:
    """Sources, shortest first, in groups to encode together; padding costs more than a smaller group."""
    groups: list[list[Ids]] = []
    tokens = 0  # in the last group
    for source in sources:
        length = len(source) + 1
        padded = (len(groups[-1]) + 1) * length if groups else 0
        fits = padded <= MAX_PADDED * (tokens + length) and tokens + length <= MAX_ENCODED_TOKENS
        if groups and (fits or tokens < ENOUGH_SOURCE_TOKENS):
            groups[-1].append(source)
            tokens += length
        else:
            groups.append([source])
            tokens = length
    return groups


class Rows:
    def __init__(self, runner: Runner) -> None:
        self._runner, self._cache = runner, runner.cache
        self._slots: dict[Job, list[int]] = {}  # the row of each live hypothesis
        self._cached: dict[Job, list[Live]] = {}  # after a step, what the cache of those rows holds
        self._count = 0  # rows

    def add(self, jobs: Sequence[Job]) -> None:
        """Encode the jobs' sources, those of similar length together; each job gets one row."""
        jobs = sorted(jobs, key=lambda job: len(job.task.source))
        held, needed = self._count, self._width(jobs)
        width = max(self._cache.width, needed) if held else needed
        for group in group_by_length([job.task.source for job in jobs]):
            self._runner.encode(group, held, width)
            held += len(group)
        for job in jobs:
            self._slots[job] = [self._count]
            self._count += 1
        self._cache.reorder([*range(self._count - len(jobs)), *[NEW_ROW] * len(jobs)], self._longest())

    def step(self) -> StepCandidates:
        """Extend every live hypothesis."""
        tokens, positions, lengths = [0] * self._count, [0] * self._count, [1] * self._count
        top_k = 1
        for job, slots in self._slots.items():
            last_tokens, position, wanted = job.next_inputs()
            length = len(job.task.source) + 1
            self._cached[job] = job.search.live
            for slot, token in zip(slots, last_tokens, strict=False):  # a search that failed has none
                tokens[slot], positions[slot], lengths[slot] = token, position, length
            if top_k < wanted <= MAX_GRAPH_TOP_K:  # whoever wants more takes them from its own rows
                top_k = wanted
        return StepCandidates(self._runner.step(tokens, positions, lengths, top_k), self._slots)

    def reorder(self, parents: Mapping[Job, list[int]]) -> None:
        """Hypotheses have branched and ended: parents[job] says which one each live one continues, [] that it leaves.

        The first child keeps its parent's row, others take free ones.
        """
        if all(continued == list(range(len(self._slots[job]))) for job, continued in parents.items()):
            return
        branches = [
            (job, i, self._slots[job][parent]) for job, all_of in parents.items() for i, parent in enumerate(all_of)
        ]
        origins, shared, slots = self._assign(branches)
        leaves = len(slots) < len(self._slots)
        self._slots, self._count, width = slots, len(branches), self._cache.width
        self._cached.clear()
        if leaves:
            needed = self._width(list(slots))
            width = needed if 2 * needed <= width else width
        self._cache.reorder(origins, self._longest(), shared, width)

    def _assign(self, branches: list[tuple[Job, int, int]]) -> tuple[list[int], list[int], dict[Job, list[int]]]:
        """Give every hypothesis (job, its number, the row it comes from) a row under len(branches).

        For each row, the one it comes from, and how many cached tokens it has in common with what was there before:
        two hypotheses of one job have the same cache up to where they parted. And the new rows of each job.
        """
        count = len(branches)
        origins, shared = [NEW_ROW] * count, [0] * count
        moving = []
        slots: dict[Job, list[int]] = {}
        for job, i, origin in branches:
            slots.setdefault(job, []).append(origin)
            if origin < count and origins[origin] == NEW_ROW:
                origins[origin] = origin
            else:
                moving.append((job, i, origin))
        held = {
            slot: (job, live)
            for job in slots
            for slot, live in zip(self._slots[job], self._cached.get(job, ()), strict=False)
        }
        free = [slot for slot in range(count) if origins[slot] == NEW_ROW]
        for (job, i, origin), slot in zip(moving, free, strict=True):
            origins[slot], slots[job][i] = origin, slot
            before, now = held.get(slot), held.get(origin)
            if before and now and before[0] is now[0]:
                shared[slot] = 1 + common_prefix(before[1].ids, now[1].ids)  # the start token comes first
        return origins, shared, slots

    def remove(self, jobs: Sequence[Job]) -> None:
        """Jobs leave before they are done."""
        leaving = set(jobs)
        self.reorder({job: [] if job in leaving else [*range(len(held))] for job, held in self._slots.items()})

    def clear(self) -> None:
        """Nothing is held any more."""
        self._slots, self._count = {}, 0
        self._cached.clear()
        self._cache.clear()

    def _longest(self) -> int:
        """The most tokens that any row has cached."""
        return max((job.search.position for job in self._slots), default=0)

    @staticmethod
    def _width(jobs: Sequence[Job]) -> int:
        """Of the cache that these jobs' sources need."""
        return round_up(max([LEAST_WIDTH, *(len(job.task.source) + 1 for job in jobs)]), WIDTH_UNIT)
