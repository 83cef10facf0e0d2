"""Which row of the batch is whose: jobs get rows, hypotheses branch, jobs leave, and the rows stay dense."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from attendant.export.bundle import padded_width
from attendant.service.engine.batch.job import Job
from attendant.service.engine.batch.kv_cache import NEW_ROW
from attendant.service.engine.batch.runner import Runner, StepOutputs
from attendant.service.engine.queue.scheduler import ENOUGH_SOURCE_TOKENS
from attendant.service.engine.search.ranking import rank_together
from attendant.service.engine.search.search import MAX_GRAPH_TOP_K, Live, Row, common_prefix
from attendant.service.engine.tasks import Ids

MAX_ENCODED_TOKENS = 256  # in a run of the encoder; more would take more memory and be no faster
MAX_PADDED = 1.5  # most tokens of a group with padding / without; only attention computes the padding


@dataclass(frozen=True)
class StepLimits:
    """How many steps may be taken before the lane looks around again."""

    most: int
    changes: ctypes.c_int64  # counted up by other threads when there is something to look at
    seen: int  # of them


@dataclass(frozen=True)
class Decoded:
    done: list[Job]  # that are done or have failed
    steps: list[tuple[int, float]]  # rows and seconds of each


class StepCandidates:
    """A step's candidates for the next token of every row."""

    def __init__(self, outputs: StepOutputs, slots: dict[Job, list[int]]) -> None:
        self.outputs, self.slots, self.rows = outputs, slots, len(outputs.top_ids)

    def of(self, job: Job) -> list[Row]:
        """The candidates of each live hypothesis of a job."""
        ids, logprobs, everything = self.outputs.top_ids, self.outputs.top_logprobs, self.outputs.logprobs
        return [Row(ids[slot].tolist(), logprobs[slot].tolist(), everything[slot]) for slot in self.slots[job]]


def group_by_length(sources: Sequence[Ids], max_padded: float = MAX_PADDED) -> list[list[Ids]]:
    """Sources, shortest first, in groups to encode together; padding costs more than a smaller group."""
    groups: list[list[Ids]] = []
    tokens = 0  # in the last group
    for source in sources:
        length = len(source) + 1
        padded = (len(groups[-1]) + 1) * length if groups else 0
        fits = padded <= max_padded * (tokens + length) and tokens + length <= MAX_ENCODED_TOKENS
        if groups and (fits or tokens < ENOUGH_SOURCE_TOKENS):
            groups[-1].append(source)
            tokens += length
        else:
            groups.append([source])
            tokens = length
    return groups


def width_of(jobs: Iterable[Job]) -> int:
    """Width of the cross-attention cache that these jobs' sources need."""
    return padded_width(max((len(job.task.source) + 1 for job in jobs), default=0))


def encode_ahead(runner: Runner, jobs: Sequence[Job], max_padded: float = MAX_PADDED) -> None:
    """Encode the sources of jobs that have no row yet, grouped by length."""
    jobs = sorted(jobs, key=lambda job: len(job.task.source))
    groups = group_by_length([job.task.source for job in jobs], max_padded)
    encoded = (each for group in groups for each in runner.encode_ahead(group))
    for job, keys_values in zip(jobs, encoded, strict=True):
        job.encoded = keys_values


class Stepping(Protocol):
    def step(self) -> StepCandidates:
        """Run one step of the decoder; returns the candidates for extending every live hypothesis."""

    def choose(self, candidates: StepCandidates) -> list[Job]:
        """Every search chooses its next tokens, and the rows follow; returns the jobs that are done or have failed."""


def decode_one(rows: Stepping) -> Decoded:
    """One more token for every live hypothesis."""
    started = time.perf_counter()
    candidates = rows.step()
    seconds = time.perf_counter() - started
    return Decoded(rows.choose(candidates), [(candidates.rows, seconds)])


class Rows:
    def __init__(self, runner: Runner) -> None:
        self._runner, self._cache = runner, runner.cache
        self._slots: dict[Job, list[int]] = {}  # the row of each live hypothesis
        self._cached: dict[Job, list[Live]] = {}  # the hypotheses whose tokens those rows hold in the cache
        self._count = self._longest = 0  # rows in use; the most tokens that any of them has cached

    @property
    def encodes_ahead(self) -> bool:
        return self._cache.encodes_ahead

    def add(self, jobs: Sequence[Job]) -> None:
        """Give each job one row; sources that were not encoded ahead are encoded here, grouped by length."""
        jobs = sorted(jobs, key=lambda job: (job.encoded is None, len(job.task.source)))
        held, needed = self._count, width_of(jobs)
        width = max(self._cache.width, needed) if held else needed
        for job in jobs:
            if job.encoded is not None:
                self._cache.put(held, job.encoded, width)
                job.encoded = None
                held += 1
        for group in group_by_length([job.task.source for job in jobs[held - self._count :]]):
            self._runner.encode(group, held, width)
            held += len(group)
        for job in jobs:
            self._slots[job] = [self._count]
            self._count += 1
        self._cache.reorder([*range(self._count - len(jobs)), *[NEW_ROW] * len(jobs)], self._longest)

    def encode_ahead(self, jobs: Sequence[Job]) -> None:
        encode_ahead(self._runner, jobs)

    def decode(self, limits: StepLimits) -> Decoded:  # noqa: ARG002
        """One more token for every live hypothesis, or several as far as the limits allow."""
        return decode_one(self)

    def step(self) -> StepCandidates:
        tokens, positions, lengths = [0] * self._count, [0] * self._count, [1] * self._count
        top_k, whole = 1, [False] * self._count
        for job, slots in self._slots.items():
            wanted = job.next_inputs()
            length = len(job.task.source) + 1
            self._cached[job] = job.search.live
            for slot, token in zip(slots, wanted.tokens, strict=False):  # a search that failed has none
                tokens[slot], positions[slot], lengths[slot] = token, wanted.position, length
                whole[slot] = wanted.whole
            if top_k < wanted.top_k <= MAX_GRAPH_TOP_K:  # a search that wants more ranks all logprobs itself
                top_k = wanted.top_k
        self._longest = max(positions) + 1
        return StepCandidates(self._runner.step(tokens, positions, lengths, top_k, whole), self._slots)

    def choose(self, candidates: StepCandidates) -> list[Job]:
        ranked = rank_together(self._slots, self._slots, candidates.outputs)
        parents = {
            job: job.advance((), ranked[job]) if job in ranked else job.advance(candidates.of(job))
            for job in self._slots
        }
        self.reorder(parents)
        return [job for job, continued in parents.items() if not continued]

    def reorder(self, parents: Mapping[Job, list[int]]) -> None:
        """After a step: parents[job][i] is the old index of the hypothesis that live one i continues; []: job leaves.

        The first child keeps its parent's row, others get free ones.
        """
        changed = {job: all_of for job, all_of in parents.items() if all_of != [*range(len(self._slots[job]))]}
        if not changed:
            return
        slots, moving = self._keep_rows(changed)
        self._count = sum(map(len, slots.values()))
        leaves, width = len(slots) < len(self._slots), self._cache.width
        origins, shared = self._move(slots, moving)
        self._slots = slots
        self._cached.clear()
        if leaves:
            needed = width_of(slots)
            width = needed if 2 * needed <= width else width
        self._cache.reorder(origins, self._longest, shared, width)

    def _keep_rows(self, changed: Mapping[Job, list[int]]) -> tuple[dict[Job, list[int]], list[tuple[Job, int]]]:
        """For every hypothesis its parent's row; and (job, index) of the hypotheses that must move to another row."""
        slots: dict[Job, list[int]] = {}
        moving: list[tuple[Job, int]] = []
        for job, held in self._slots.items():
            if job not in changed:
                slots[job] = [*held]
            elif changed[job]:
                slots[job] = [held[parent] for parent in changed[job]]
                moving += [(job, i) for i, slot in enumerate(slots[job]) if slot in slots[job][:i]]
        count = sum(map(len, slots.values()))
        if count < self._count:  # close the gaps: rows past the new count move down
            moved = set(moving)
            moving += [
                (job, i)
                for job, held in slots.items()
                for i, slot in enumerate(held)
                if slot >= count and (job, i) not in moved
            ]
        return slots, moving

    def _move(self, slots: dict[Job, list[int]], moving: list[tuple[Job, int]]) -> tuple[list[int], list[int]]:
        """Give each hypothesis in `moving` a free row, if possible one of its own job, and write it into `slots`.

        Returns for each row the row to copy from, and how many leading tokens need no copy: two hypotheses of one job
        have the same cache up to where they branched.
        """
        origins, shared = list(range(self._count)), [0] * self._count
        moved = set(moving)
        taken = {slot for job, held in slots.items() for i, slot in enumerate(held) if (job, i) not in moved}
        free = dict.fromkeys(slot for slot in range(self._count) if slot not in taken)
        others = []
        for job, i in moving:
            before, origin = self._slots[job], slots[job][i]
            own = next((number for number, slot in enumerate(before) if slot in free), None)
            if own is None:
                others.append((job, i))
                continue
            slot = before[own]
            del free[slot]
            origins[slot], slots[job][i] = origin, slot
            lives = self._cached.get(job, ())
            if lives:  # 1 for the start token
                shared[slot] = 1 + common_prefix(lives[own].ids, lives[before.index(origin)].ids)
        for (job, i), slot in zip(others, list(free), strict=True):
            origins[slot], slots[job][i] = slots[job][i], slot
        return origins, shared

    def has_token(self, job: Job) -> bool:
        """Whether a job's first token was emitted or, if it is not streamed, chosen."""
        return job.has_token()

    def remove(self, jobs: Sequence[Job]) -> None:
        """Remove jobs that are not done."""
        leaving = set(jobs)
        self.reorder({job: [] if job in leaving else [*range(len(held))] for job, held in self._slots.items()})

    def clear(self) -> None:
        """Drop all jobs and rows."""
        self._slots, self._count, self._longest = {}, 0, 0
        self._cached.clear()
        self._cache.clear()
