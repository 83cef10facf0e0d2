"""Rows whose plain searches are decided in compiled code, for the whole batch at once (kernels/search.h).

Where all jobs are plain, steps of the decoder and of the searches alternate in compiled code, without Python's lock,
until a job is done or the lane should look around. Otherwise each step is a call, and Python has its part after it.

A job is adopted once its next token is chosen by the model's log-probabilities alone. Its search object is then out of
date, until the job is done or is handed back: where the end token is forced, where a number is NaN, where it leaves.
All other jobs advance as in `rows.py`; only the moves of their rows are compiled.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from attendant.export.bundle import padded_width
from attendant.kernels.search import NO_ROOM, Steps, check, load_search
from attendant.service.engine.batch.host_cache import HostKVCache
from attendant.service.engine.batch.job import Job
from attendant.service.engine.batch.kv_cache import EncodedSources
from attendant.service.engine.batch.rows import Decoded, StepCandidates, StepLimits, decode_one, encode_ahead
from attendant.service.engine.batch.runner import Runner
from attendant.service.engine.batch.search_calls import (
    ADMISSION,
    NO_OPTIONS,
    Options,
    address_of,
    first_wanted,
    is_plain,
    options_of,
    planes_of,
    read_answers,
    read_state,
    starts_plain,
)
from attendant.service.engine.search.beam import GenerateSearch
from attendant.service.engine.search.search import MAX_GRAPH_TOP_K
from attendant.service.engine.tasks import Array, Generate

DONE, HAND_BACK_NOW, HAND_BACK_NEXT = 1, 2, 3
MAX_STEPS = 64  # in one call
MAX_SECONDS = 0.002  # after which a call begins no further step, so that deadlines and departures are seen soon
MAX_PADDED = 4  # most tokens of a group with padding / without; the kernels only clear the padding


class CompiledRows:
    """The interface of `rows.Rows`."""

    encodes_ahead = True

    def __init__(self, runner: Runner, max_rows: int) -> None:
        assert isinstance(runner.cache, HostKVCache)
        self._runner: Runner = runner
        self._cache: HostKVCache = runner.cache
        self._code: ctypes.PyDLL = load_search()
        runtime = runner.runtime
        arrays = (runner.tokens, runner.positions, runner.whole, self._cache.source_rows)
        self._batch: ctypes.c_void_p = ctypes.c_void_p(
            self._code.attendant_batch_new(max_rows, *map(address_of, arrays), runtime.pad, runtime.bos, runtime.eos)
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
        self._layout: tuple[int, ...] = ()  # for which the compiled code knows where the cache's values lie
        self._found = np.zeros((2, max_rows), np.int32)  # what `advance` returns: names and statuses
        self._moved = np.zeros(2, np.int64)  # and rows in use and the furthest position, if it has moved the rows
        candidates = (runner.top_ids, runner.top_logprobs)
        self._candidates: list[int] = [address_of(array) for array in candidates]
        self._results: list[int] = [address_of(array) for array in (*self._found, self._moved)]
        self._rows: Array = np.zeros(max_rows, np.int32)
        self._step_rows, self._elapsed = np.zeros(MAX_STEPS, np.int32), np.zeros(MAX_STEPS, np.float64)
        self._steps = Steps(seconds=MAX_SECONDS)
        self._steps.top_ids, self._steps.top_logprobs = self._candidates
        self._steps.jobs, self._steps.statuses, self._steps.moved = self._results
        self._steps.rows, self._steps.elapsed = address_of(self._step_rows), address_of(self._elapsed)
        self._make_room(4096)

    def _make_room(self, room: int) -> None:
        """For what the compiled code tells of hypotheses."""
        self._integers: Array = np.zeros(room, np.int64)
        self._numbers: Array = np.zeros(room, np.float64)
        self._buffers: list[int] = [address_of(self._integers), address_of(self._numbers)]

    def __del__(self) -> None:
        if hasattr(self, "_batch"):
            self._code.attendant_batch_free(self._batch)

    def add(self, jobs: Sequence[Job]) -> None:
        """Give each job one row; sources that were not encoded ahead are encoded here, grouped by length."""
        if not jobs:
            return
        self.encode_ahead([job for job in jobs if job.encoded is None])
        needed = padded_width(max(len(job.task.source) + 1 for job in jobs))
        slots = self._cache.take(len(jobs), max(self._cache.width, needed) if self._count else needed)
        together: dict[int, tuple[EncodedSources, bytearray]] = {}  # what the compiled code is told of each job
        for job, slot in zip(jobs, slots, strict=True):
            assert job.encoded is not None
            sources, index = job.encoded
            _, admissions = together.setdefault(id(sources), (sources, bytearray()))
            admissions += self._admission(job, slot, index)
            self._cache.source_lengths[slot] = len(job.task.source) + 1
            job.encoded = None
        self._send_planes()
        for sources, admissions in together.values():
            self._count = check(
                self._code.attendant_batch_admit(
                    self._batch,
                    planes_of(sources.arrays),
                    self._crossed,
                    len(self._crossed),
                    (ctypes.c_char * len(admissions)).from_buffer(admissions),
                    len(admissions) // ADMISSION.size,
                )
            )
            if sources.release:
                sources.release()
        self._position = -1

    def _admission(self, job: Job, slot: int, index: int) -> bytes:
        """An AttendantAdmission."""
        name = self._names[job] = self._next_name
        self._next_name += 1
        self._jobs[name] = job
        fields = name, slot, index, len(job.task.source) + 1
        if not starts_plain(job):
            self._in_python[job] = None
            return ADMISSION.pack(*fields, False, *NO_OPTIONS, 0)
        assert isinstance(job.task, Generate)
        options = job.task.options
        self._adopted(job, first_wanted(options))
        return ADMISSION.pack(*fields, True, *options_of(job.special, options), job.special.bos)

    def encode_ahead(self, jobs: Sequence[Job]) -> None:
        """Encode the sources of jobs that have no row yet, grouped by length."""
        encode_ahead(self._runner, jobs, MAX_PADDED)

    def _adopt_if_plain(self, job: Job) -> None:
        if not is_plain(job):
            return
        search, live = job.search, job.search.live[0]
        assert isinstance(search, GenerateSearch)
        ids, logprobs = np.array(live.ids, np.int64), np.array(live.logprobs, np.float64)
        given = Options(*options_of(search.special, search.options))
        check(
            self._code.attendant_batch_adopt(
                self._batch,
                self._names[job],
                ctypes.byref(given),
                address_of(ids),
                address_of(logprobs),
                len(ids),
                live.weight,
                search.last_tokens()[0],
            )
        )
        del self._in_python[job]
        self._adopted(job, search.wanted())

    def _adopted(self, job: Job, wanted: int) -> None:
        self._top_k[job] = wanted
        self._without_token.add(job)

    def decode(self, limits: StepLimits) -> Decoded:
        """One more token for every live hypothesis, or several as far as the limits allow."""
        if self._in_python or not self._runner.steps_in_compiled_code:
            return decode_one(self)
        runner, steps = self._runner, self._steps
        if self._position < 0:
            self._position = max(runner.positions[: self._count].tolist())
        handles, steps.top_k = runner.prepare(self._count, self._position, max(self._top_k.values()))
        self._send_planes()
        steps.bindings, steps.changes = ctypes.addressof(handles), ctypes.addressof(limits.changes)
        steps.most, steps.seen, steps.room = min(limits.most, MAX_STEPS), limits.seen, self._cache.length
        count = check(self._code.attendant_batch_run(self._batch, ctypes.byref(steps)))
        rows, seconds = self._step_rows[: steps.taken].tolist(), self._elapsed[: steps.taken].tolist()
        done = self._look_at(count, lambda: StepCandidates(runner.outputs(rows[-1], steps.top_k), {}))
        return Decoded(done, [*zip(rows, seconds, strict=True)])

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
            self._position = max(runner.positions[: self._count].tolist())
        outputs = runner.run(self._count, self._position, top_k)
        self._send_planes()
        return StepCandidates(outputs, slots)

    def _rows_of(self, job: Job) -> list[int]:
        count = check(self._code.attendant_batch_rows(self._batch, self._names[job], address_of(self._rows)))
        return list(map(int, self._rows[:count]))

    def _send_planes(self) -> None:
        """Tell the compiled code where the cache's values lie, if that has changed."""
        if self._layout == self._cache.layout:
            return
        self._layout, self._crossed = self._cache.layout, planes_of(self._cache.cross_values())
        planes = planes_of(self._cache.past_values())
        check(self._code.attendant_batch_planes(self._batch, planes, len(planes)))

    def choose(self, candidates: StepCandidates) -> list[Job]:
        """Every search chooses its next tokens, and the rows follow; returns the jobs that are done or have failed."""
        count = check(
            self._code.attendant_batch_advance(
                self._batch, *self._candidates, candidates.outputs.top_ids.shape[1], *self._results
            )
        )
        return self._look_at(count, lambda: candidates)

    def _look_at(self, count: int, of_last_step: Callable[[], StepCandidates]) -> list[Job]:
        """After a step: the first `count` of the jobs that were found are for Python; all others have advanced."""
        self._without_token.clear()
        names, statuses = (each[:count].tolist() for each in self._found)
        if count and not self._in_python and set(statuses) == {DONE} and (done := self._finish(names)):
            return done
        rows, self._position = self._moved.tolist()
        if rows >= 0:
            self._count = rows
            return []
        self._position = -1
        done, hand_back, candidates = [], [], of_last_step()
        for name, status in zip(names, statuses, strict=True):
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

    def _finish(self, names: list[int]) -> list[Job]:
        """All the jobs that were found are done: read their answers, and move the rows.

        [] if the answers need more room.
        """
        integers, numbers = self._integers, self._numbers
        used = self._code.attendant_batch_finish(
            self._batch, len(names), self._results[0], *self._buffers, len(integers), self._results[2]
        )
        if used == NO_ROOM:
            return []
        self._count, self._position = self._moved.tolist()
        found, values, done = iter(integers[: check(used)].tolist()), iter(numbers[:used].tolist()), []
        for name in names:
            job = self._jobs.pop(name)
            del self._names[job], self._top_k[job]
            self._cache.release(next(found))
            read_answers(job, found, values)
            done.append(job)
        self._cache.shrink_to_fit(self._count)
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
                self._batch, len(changed), address_of(names), address_of(counts), address_of(flat)
            )
        )
        for job, slot in zip(leaving, slots, strict=True):
            del self._jobs[self._names.pop(job)]
            self._in_python.pop(job, None)
            self._top_k.pop(job, None)
            self._cache.release(int(slot))
        if leaving:
            self._cache.shrink_to_fit(self._count)

    def _hand_back(self, job: Job) -> None:
        """Bring a job's search up to date; from here on it advances in Python."""
        search = job.search
        assert isinstance(search, GenerateSearch)
        name = self._names[job]
        while True:
            room = len(self._integers)
            used = self._code.attendant_batch_state(self._batch, name, *self._buffers, room)
            if used != NO_ROOM:
                break
            self._make_room(2 * room)
        check(used)
        check(self._code.attendant_batch_hand_back(self._batch, name))
        search.live, search.ended = read_state(search, self._integers[:used].tolist(), self._numbers)
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
