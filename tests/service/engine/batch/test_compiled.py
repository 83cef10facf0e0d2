"""The compiled search decides to the bit as the searches in Python, whatever joins, leaves and shares the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendant import kernels
from attendant.export.bundle import Sizes
from attendant.kernels.search import OUT_OF_MEMORY, SearchError, check, load_search
from attendant.service.engine.batch.compiled import CompiledRows
from attendant.service.engine.batch.host_cache import HostKVCache
from attendant.service.engine.batch.job import Job, make_search
from attendant.service.engine.batch.kv_cache import LENGTH_UNIT, Encoded, EncodedSources
from attendant.service.engine.batch.runner import StepOutputs
from attendant.service.engine.batch.search_calls import ADMISSION, NO_OPTIONS
from attendant.service.engine.observer import EngineObserver
from attendant.service.engine.search.constraints.constraints import Constraints
from attendant.service.engine.search.constraints.forbidden import Forbidden, chain
from attendant.service.engine.search.constraints.terms import Form, Term
from attendant.service.engine.search.search import Row, Search, SpecialIds
from attendant.service.engine.tasks import Generate, Options, Score, Task, Timing
from tests.support.engines import Callback

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="the kernels are not compiled")

SPECIAL = SpecialIds(pad=0, bos=1, eos=2)
VOCABULARY, MAX_ROWS = 9, 24
NO_TIME = Timing(0.0, 0.0, 0.0)
SIZES = Sizes(
    source_vocab=9,
    target_vocab=VOCABULARY,
    d_model=4,
    d_ff=4,
    heads=2,
    encoder_layers=1,
    decoder_layers=2,
    max_length=3 * LENGTH_UNIT,
)


class TableRunner:
    """A real cache that holds token ids in place of keys; the distribution of a row is a function of what it holds."""

    def __init__(self, dtype: str = "float32", ties: bool = False) -> None:
        self.cache = HostKVCache(SIZES, MAX_ROWS, dtype)
        self.runtime = self
        self.pad, self.bos, self.eos = SPECIAL.pad, SPECIAL.bos, SPECIAL.eos
        self.tokens, self.positions, self.whole = np.zeros((3, MAX_ROWS), np.int64)
        self.top_ids, self.top_logprobs = (
            np.zeros(MAX_ROWS * VOCABULARY, np.int64),
            np.zeros(MAX_ROWS * VOCABULARY, "f4"),
        )
        self.ties = ties

    def encode_ahead(self, sources: Sequence[Any]) -> list[Encoded]:
        width = max(map(len, sources)) + 4
        found = []
        for source in sources:
            arrays = tuple(np.zeros_like(kind.empty(1, width)) for kind in self.cache._kinds)
            for array in arrays:
                array[:, 0, :, : len(source)] = np.array(source)[:, None]
            found.append(Encoded(EncodedSources(arrays), 0))
        return found

    def run(self, rows: int, position: int, top_k: int) -> StepOutputs:
        self.cache.reserve(rows, position)
        table = []
        for row in range(rows):
            at, slot = self.positions[row], self.cache.source_rows[row]
            held, crossed = [], []
            for past, cross in zip(self.cache._past, self.cache._cross, strict=True):
                past.values[:, row, :, at] = self.tokens[row]
                held.append(past.values[:, row, :, : at + 1])
                crossed.append(cross.values[:, slot, :, : self.cache.source_lengths[slot] - 1])
            tokens, source = held[0][0, 0, :, 0], crossed[0][0, 0, :, 0]
            assert all((each == tokens[:, None]).all() for each in held)
            assert all((each == source[:, None]).all() for each in crossed)
            table.append(logprobs_after(source.astype(int).tolist(), tokens.astype(int).tolist(), self.ties))
        values = np.array(table)
        top = np.ascontiguousarray(np.argsort(-values, axis=1, kind="stable")[:, : min(top_k, VOCABULARY)])
        whole = np.where(self.whole[:rows, None] != 0, values, np.nan)
        ids, logprobs = (each[: top.size].reshape(top.shape) for each in (self.top_ids, self.top_logprobs))
        ids[:], logprobs[:] = top, np.take_along_axis(values, top, 1)
        return StepOutputs(ids, logprobs, whole)


def logprobs_after(source: Sequence[int], cached: Sequence[int], ties: bool) -> Any:
    logits = np.random.default_rng([len(source), *source, *cached]).normal(size=VOCABULARY) * 2
    if ties:
        logits = np.rint(logits)
    return (logits - np.log(np.exp(logits).sum())).astype(np.float32)


def job(task: Task, special: SpecialIds) -> Job:
    return Job(task, 0, Callback(), None, 0.0, special, EngineObserver())


def alone(task: Task, special: SpecialIds, ties: bool) -> Search:
    """The search in Python, done."""
    search = make_search(special, task)
    while not search.done:
        start = [special.bos, *special.start[: search.started]]
        table = [logprobs_after(task.source, [*start, *live.ids], ties) for live in search.live]
        tops = [np.argsort(-values, kind="stable") for values in table]
        search.advance([Row(top.tolist(), v[top].tolist(), v) for top, v in zip(tops, table, strict=True)])
    return search


def tasks() -> st.SearchStrategy[Task]:
    source = st.lists(st.integers(3, 8), min_size=1, max_size=12).map(tuple)
    plain = st.builds(
        Options,
        beam_size=st.integers(1, 5),
        num_hypotheses=st.just(1),
        max_length=st.integers(1, 40),
        min_length=st.integers(0, 3),
        length_penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0, -1.0]),
        early_stopping=st.sampled_from([False, True, "never"]),
        forced_end=st.booleans(),
    )
    several = st.builds(Options, beam_size=st.just(4), num_hypotheses=st.integers(1, 4), max_length=st.integers(1, 12))
    samples = st.builds(Options, temperature=st.just(1.5), num_hypotheses=st.integers(1, 3), max_length=st.just(6))
    penalised = st.builds(Options, beam_size=st.integers(1, 3), no_repeat_ngram_size=st.just(2), max_length=st.just(8))
    repeated = st.builds(Options, repetition_penalty=st.sampled_from([0.5, 1.7]), max_length=st.just(8))
    options = plain | plain | several | samples | penalised | repeated
    phrase = st.lists(st.integers(3, 8), min_size=1, max_size=2).map(tuple)
    constrained = st.builds(Constraints, forbidden=st.lists(phrase.map(chain), min_size=1, max_size=3).map(Forbidden))
    with_terms = st.builds(Constraints, terms=phrase.map(lambda ids: (Term((Form(ids, ""),)),)))
    wide = st.builds(Options, beam_size=st.integers(2, 5), max_length=st.integers(3, 12))
    return st.one_of(
        st.builds(Generate, source=source, options=plain, constraints=constrained),
        st.builds(Generate, source=source, options=wide, constraints=with_terms),
        st.builds(Generate, source=source, options=options, prefix=st.sampled_from([(), (), (4,)])),
        st.builds(Generate, source=source, options=plain),
        st.builds(Score, source=source, target=source),
    )


def allowed(task: Task) -> bool:
    """As the engine checks it."""
    if not isinstance(task, Generate):
        return True
    return task.options.min_length <= task.options.max_length and len(task.prefix) <= task.options.max_length


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_every_job_gets_the_answer_of_its_python_search(data: st.DataObject) -> None:
    ties = data.draw(st.booleans())
    special = data.draw(st.sampled_from([SPECIAL, SpecialIds(0, 1, 2, start=(5, 6))]))
    rows = CompiledRows(TableRunner(data.draw(st.sampled_from(["float32", "int8"])), ties), MAX_ROWS)  # type: ignore[arg-type]
    waiting = data.draw(st.lists(tasks().filter(allowed), min_size=1, max_size=9))
    running: list[Job] = []
    while waiting or running:
        room = (MAX_ROWS - 5 * len(running)) // 5
        count = data.draw(st.integers(0 if running else 1, min(room, len(waiting)))) if waiting and room > 0 else 0
        joining, waiting = [job(task, special) for task in waiting[:count]], waiting[count:]
        if joining:
            rows.add(joining)
            running += joining
        if len(running) > 1 and data.draw(st.integers(0, 9)) == 0:
            rows.remove([running.pop(data.draw(st.integers(0, len(running) - 1)))])
        for one in rows.choose(rows.step()):
            running.remove(one)
            expected = alone(one.task, special, ties)
            assert one.result(NO_TIME) == expected.result(NO_TIME)
            assert not one.finished
    assert (rows._count, rows._cache._used) == (0, set())


def test_a_job_that_leaves_has_the_state_that_its_python_search_would_have() -> None:
    task = Generate(source=(3, 4, 5), options=Options(beam_size=3, max_length=30, min_length=20))
    rows = CompiledRows(TableRunner(), MAX_ROWS)  # type: ignore[arg-type]
    one, other = job(task, SPECIAL), job(Score(source=(3,), target=(4,) * 20), SPECIAL)
    rows.add([one, other])
    for _ in range(7):
        rows.choose(rows.step())
    rows.remove([one])
    search = make_search(SPECIAL, task)
    for _ in range(7):
        table = [logprobs_after(task.source, [SPECIAL.bos, *live.ids], False) for live in search.live]
        tops = [np.argsort(-values, kind="stable") for values in table]
        search.advance([Row(top.tolist(), v[top].tolist(), v) for top, v in zip(tops, table, strict=True)])
    assert one.search.live == search.live
    assert one.decoded == 1 + 6 * 3
    assert one.search.partial_result(NO_TIME) == search.partial_result(NO_TIME)


def test_a_log_probability_that_is_no_number_is_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = TableRunner()
    rows = CompiledRows(runner, MAX_ROWS)  # type: ignore[arg-type]
    one = job(Generate(source=(3, 4), options=Options(beam_size=2, max_length=9)), SPECIAL)
    rows.add([one])
    assert one not in rows._in_python
    real = runner.run

    def run(count: int, position: int, top_k: int) -> StepOutputs:
        outputs = real(count, position, top_k)
        outputs.top_logprobs[:] = np.nan
        return outputs

    monkeypatch.setattr(runner, "run", run)
    rows.choose(rows.step())
    assert one in rows._in_python


def test_an_error_of_the_compiled_code_is_an_exception_and_the_rows_can_be_cleared_and_used_again() -> None:
    rows = CompiledRows(TableRunner(), MAX_ROWS)  # type: ignore[arg-type]
    task = Generate(source=(3, 4), options=Options(beam_size=2, max_length=9))
    rows.add([job(task, SPECIAL), job(Score(source=(3,), target=(4, 5)), SPECIAL)])
    rows.choose(rows.step())
    rows._code.attendant_batch_clear(rows._batch)  # it knows none of the jobs any more
    with pytest.raises(SearchError, match="the compiled search refused a call: unknown job"):
        rows.step()
    rows.clear()
    again = job(task, SPECIAL)
    rows.add([again])
    while not rows.choose(rows.step()):
        pass
    assert again.result(NO_TIME) == alone(task, SPECIAL, ties=False).result(NO_TIME)
    assert (rows._count, rows._cache._used) == (0, set())


def test_more_jobs_than_rows_are_refused_by_the_compiled_code() -> None:
    code, array = load_search(), np.zeros(1, np.int64)
    batch = code.attendant_batch_new(1, *[array.ctypes.data] * 4, 0, 1, 2)
    two = b"".join(ADMISSION.pack(name, 0, 0, 0, 0, *NO_OPTIONS, 0) for name in (1, 2))
    assert check(code.attendant_batch_admit(batch, None, None, 0, two, 1)) == 1
    with pytest.raises(SearchError, match="no room"):
        check(code.attendant_batch_admit(batch, None, None, 0, two[ADMISSION.size :], 1))
    with pytest.raises(MemoryError):
        check(OUT_OF_MEMORY)
    code.attendant_batch_free(batch)


def test_a_batch_for_which_there_is_no_memory_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        CompiledRows(TableRunner(), -1)  # type: ignore[arg-type]
