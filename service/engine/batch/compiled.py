"""Rows whose plain searches are decided in compiled code, a call a step for the whole batch (kernels/search.h).

A job is adopted once its next token is chosen by the model's log-probabilities alone. Its search object is then out of
date, until the job is done or is handed back: where the end token is forced, where a number is NaN, where it leaves.
All other jobs advance as in `rows.py`; only the moves of their rows are compiled.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from attendant.kernels.search import NO_ROOM, check, load_search
from attendant.service.engine.batch.host_cache import HostKVCache
from attendant.service.engine.batch.job import Job
from attendant.service.engine.batch.rows import StepCandidates, encode_ahead, width_of
from attendant.service.engine.batch.runner import Runner
from attendant.service.engine.search.beam import GenerateSearch
from attendant.service.engine.search.sampling import SampleSearch
from attendant.service.engine.search.search import MAX_GRAPH_TOP_K, Live
from attendant.service.engine.tasks import Array

DONE, HAND_BACK_NOW, HAND_BACK_NEXT = 1, 2, 3
REASONS = ("stop", "length")
EARLY_STOPPING = {False: 0, True: 1, "never": 2}


class Plane(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("tensors", "tensor_stride", "row_stride", "heads", "head_stride")),
        ("entry", ctypes.c_int64),
    ]


class Options(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("beam_size", "num_hypotheses", "min_length", "max_length")),
        *((name, ctypes.c_int32) for name in ("forced_end", "early_stopping", "start_length")),
        ("length_penalty", ctypes.c_double),
    ]


class CompiledRows:
    """The interface of `rows.Rows`."""

    encodes_ahead = True

    def __init__(self, runner: Runner, max_rows: int) -> None:
        assert isinstance(runner.cache, HostKVCache)
        self._runner: Runner = runner
        self._cache: HostKVCache = runner.cache
        self._code: ctypes.CDLL = load_search()
        runtime = runner.runtime
        arrays = (runner.tokens, runner.positions, runner.whole, self._cache.source_rows)
        self._batch: ctypes.c_void_p = ctypes.c_void_p(
            self._code.attendant_batch_new(max_rows, *map(_address, arrays), runtime.pad, runtime.bos, runtime.eos)
        )
        if not self._batch:
            raise MemoryError(f"no memory for a batch of {max_rows} rows.")
        self._names: dict[Job, int] = {}  # of each job, in the compiled code
        self._jobs: dict[int, Job] = {}
        self._in_python: dict[Job, None] = {}  # those that are not adopted, in order
        self._top_k: dict[Job, int] = {}  # candidates that adopted jobs look at
        self._without_token: set[Job] = set()  # adopted since the last step
        self._count: int = 0  # rows in use
        self._position: int = -1  # the furthest of them, if it is known
        self._next_name: int = 0
        self._layout: tuple[int, ...] = ()
        self._found = np.zeros((2, max_rows), np.int32)  # what `advance` returns: names and statuses
        self._moved = np.zeros(2, np.int64)  # and rows in use and the furthest position, if it has moved the rows
        candidates = (runner.top_ids, runner.top_logprobs)
        self._candidates: list[int] = [_address(array) for array in candidates]
        self._results: list[int] = [_address(array) for array in (*self._found, self._moved)]
        self._rows: Array = np.zeros(max_rows, np.int32)
        self._integers: Array = np.zeros(1024, np.int64)
        self._numbers: Array = np.zeros(1024, np.float64)

    def __del__(self) -> None:
        if hasattr(self, "_batch"):
            self._code.attendant_batch_free(self._batch)

    def add(self, jobs: Sequence[Job]) -> None:
        """Give each job one row; sources that were not encoded ahead are encoded here, grouped by length."""
        fresh = [job for job in jobs if job.encoded is None]
        encode_ahead(self._runner, fresh)
        needed = width_of(jobs)
        width = max(self._cache.width, needed) if self._count else needed
        for job in jobs:
            assert job.encoded is not None
            self._cache.put(self._count, job.encoded, width)
            self._cache.source_lengths[self._cache.source_rows[self._count]] = len(job.task.source) + 1
            job.encoded = None
            name = self._names[job] = self._next_name
            self._next_name += 1
            self._jobs[name], self._in_python[job] = job, None
            self._count, self._position = 1 + check(self._code.attendant_batch_add(self._batch, name)), -1
            self._adopt_if_plain(job)

    def encode_ahead(self, jobs: Sequence[Job]) -> None:
        """Encode the sources of jobs that have no row yet, grouped by length."""
        encode_ahead(self._runner, jobs)

    def _adopt_if_plain(self, job: Job) -> None:
        search = job.search
        if (
            job.task.stream
            or job.finished
            or not isinstance(search, GenerateSearch)
            or isinstance(search, SampleSearch)
            or search.needs_all()
            or len(search.live) != 1
        ):
            return
        options, live = search.options, search.live[0]
        ids, logprobs = np.array(live.ids, np.int64), np.array(live.logprobs, np.float64)
        given = Options(
            options.beam_size,
            options.num_hypotheses,
            options.min_length,
            options.max_length,
            options.forced_end,
            EARLY_STOPPING[options.early_stopping],
            len(search.special.start),
            options.length_penalty,
        )
        check(
            self._code.attendant_batch_adopt(
                self._batch,
                self._names[job],
                ctypes.byref(given),
                _address(ids),
                _address(logprobs),
                len(ids),
                live.weight,
                search.last_tokens()[0],
            )
        )
        del self._in_python[job]
        self._top_k[job] = search.wanted()
        self._without_token.add(job)

    def step(self) -> StepCandidates:
        """Run one step of the decoder for every live hypothesis."""
        top_k = max(self._top_k.values(), default=1)
        slots = {job: self._rows_of(job) for job in self._in_python}
        runner = self._runner
        for job, rows in slots.items():
            wanted = job.next_inputs()
            for row, token in zip(rows, wanted.tokens, strict=False):  # a search that failed has none
                runner.tokens[row], runner.positions[row], runner.whole[row] = token, wanted.position, wanted.whole
            if top_k < wanted.top_k <= MAX_GRAPH_TOP_K:
                top_k = wanted.top_k
        if slots or self._position < 0:
            self._position = int(runner.positions[: self._count].max())
        outputs = runner.run(self._count, self._position, top_k)
        if self._layout != self._cache.layout:
            self._send_planes()
        return StepCandidates(outputs, slots)

    def _rows_of(self, job: Job) -> list[int]:
        count = check(self._code.attendant_batch_rows(self._batch, self._names[job], _address(self._rows)))
        return list(map(int, self._rows[:count]))

    def _send_planes(self) -> None:
        """Tell the compiled code where the cache's values lie."""
        self._layout = self._cache.layout
        planes = [
            Plane(values.ctypes.data, len(values), *values.strides[:2], values.shape[2], *values.strides[2:4])
            for values in self._cache.past_values()
        ]
        check(self._code.attendant_batch_planes(self._batch, (Plane * len(planes))(*planes), len(planes)))

    def choose(self, candidates: StepCandidates) -> list[Job]:
        """Every search chooses its next tokens, and the rows follow; returns the jobs that are done or have failed."""
        count = check(
            self._code.attendant_batch_advance(
                self._batch, *self._candidates, candidates.outputs.top_ids.shape[1], *self._results
            )
        )
        self._without_token.clear()
        rows, self._position = self._moved.tolist()
        if rows >= 0:
            self._count = rows
            return []
        self._position = -1
        names, statuses = self._found
        done, hand_back = [], []
        for name, status in zip(names[:count].tolist(), statuses[:count].tolist(), strict=True):
            job = self._jobs[name]
            if status == HAND_BACK_NEXT:
                hand_back.append(job)
                continue
            self._hand_back(job)
            if status == DONE:
                job.search.done = True
                done.append(job)
            else:
                candidates.slots[job] = self._rows_of(job)
        parents = {job: job.advance(candidates.of(job)) for job in candidates.slots}
        done += [job for job, continued in parents.items() if not continued]
        self._commit({**parents, **{job: [] for job in done}})
        for job in hand_back:
            self._hand_back(job)
        for job in [job for job in parents if job in self._names]:
            self._adopt_if_plain(job)
        return done

    def _commit(self, parents: dict[Job, list[int]]) -> None:
        """Move rows; parents[job] are those of a job of Python's, [] if a job leaves."""
        changed = list(parents)
        names = np.array([self._names[job] for job in changed], np.int32)
        counts = np.array([len(parents[job]) for job in changed], np.int32)
        flat = np.array([parent for job in changed for parent in parents[job]], np.int32)
        leaving, self._position = [job for job in changed if not parents[job]], -1
        slots = [self._cache.source_rows[self._rows_of(job)[0]] for job in leaving]
        self._count = check(
            self._code.attendant_batch_commit(
                self._batch, len(changed), _address(names), _address(counts), _address(flat)
            )
        )
        for job, slot in zip(leaving, slots, strict=True):
            del self._jobs[self._names.pop(job)]
            self._in_python.pop(job, None)
            self._top_k.pop(job, None)
            self._cache.release(int(slot))
        if leaving:
            needed = width_of(self._names)
            self._cache.shrink(self._count, needed if 2 * needed <= self._cache.width else self._cache.width)

    def _hand_back(self, job: Job) -> None:
        """Bring a job's search up to date; from here on it advances in Python."""
        search = job.search
        assert isinstance(search, GenerateSearch)
        name = self._names[job]
        while True:
            room = len(self._integers)
            used = self._code.attendant_batch_state(
                self._batch, name, _address(self._integers), _address(self._numbers), room
            )
            if used != NO_ROOM:
                break
            self._integers, self._numbers = np.zeros(2 * room, np.int64), np.zeros(2 * room, np.float64)
        check(used)
        check(self._code.attendant_batch_hand_back(self._batch, name))
        search.live, search.ended = _read_state(search, self._integers[:used].tolist(), self._numbers)
        job.decoded += int(self._integers[2])
        self._in_python[job] = None
        self._top_k.pop(job, None)

    def has_token(self, job: Job) -> bool:
        """Whether a job's first token was emitted or, if it is not streamed, chosen."""
        return job not in self._without_token if job in self._top_k else job.has_token()

    def remove(self, jobs: Sequence[Job]) -> None:
        """Remove jobs that are not done; their searches are brought up to date."""
        for job in jobs:
            if job not in self._in_python:
                self._hand_back(job)
        self._commit({job: [] for job in jobs})

    def clear(self) -> None:
        """Drop all jobs and rows, whatever state an error has left them in."""
        self._code.attendant_batch_clear(self._batch)
        for kept in (self._names, self._jobs, self._in_python, self._top_k, self._without_token):
            kept.clear()
        self._count, self._position = 0, -1
        self._cache.clear()


def _read_state(search: GenerateSearch, integers: list[int], numbers: Array) -> tuple[list[Live], list[Any]]:
    """Live hypotheses, and the finished ones as `GenerateSearch.ended` has them."""
    live, ended, at, start = [], [], 3, 0
    for index in range(integers[0] + integers[1]):
        length, reason = integers[at], REASONS[integers[at + 1]]
        values = numbers[start : start + 2 + length].tolist()
        found = Live(integers[at + 2 : at + 2 + length], values[2:], values[0], values[0])
        at, start = at + 2 + length, start + 2 + length
        if index < integers[0]:
            live.append(found)
        else:
            ended.append((values[1], search.hypothesis(found, reason)))
    return live, ended


def _address(array: Array) -> int:
    return int(array.ctypes.data)
