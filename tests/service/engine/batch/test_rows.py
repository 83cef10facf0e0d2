"""Rows with a cache made of lists: whatever shares the batch, each hypothesis continues its own source and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendant.export.bundle import padded_width
from attendant.service.engine.batch.job import Job, make_search
from attendant.service.engine.batch.kv_cache import NEW_ROW
from attendant.service.engine.batch.rows import MAX_PADDED, Rows, group_by_length
from attendant.service.engine.batch.runner import StepOutputs
from attendant.service.engine.observer import EngineObserver
from attendant.service.engine.queue.scheduler import ENOUGH_SOURCE_TOKENS
from attendant.service.engine.search.search import MAX_GRAPH_TOP_K, Row, Search, SpecialIds
from attendant.service.engine.tasks import Generate, Options, Score, Task, Timing
from tests.support.engines import Callback

SPECIAL = SpecialIds(pad=0, bos=1, eos=2)
VOCABULARY = 9
NO_TIME = Timing(0.0, 0.0, 0.0)


class ListCache:
    """A KV cache whose rows are lists: what was cached at each position, and of which source."""

    def __init__(self) -> None:
        self.width = 0
        self.sources: list[Any] = []
        self.tokens: list[list[int]] = []

    def encode(self, sources: Sequence[Any], held: int, width: int) -> None:
        assert width == padded_width(width)
        assert all(len(source) < width for source in sources)
        self.width = width
        self.sources[held:] = sources
        self.tokens[held:] = [[] for _ in sources]

    def reorder(
        self, origins: Sequence[int], position: int, shared: Sequence[int] = (), width: int | None = None
    ) -> None:
        more = range(len(self.sources), len(origins))
        self.sources, self.tokens = [*self.sources, *(() for _ in more)], [*self.tokens, *([] for _ in more)]
        for row, origin in enumerate(origins):
            if origin in (row, NEW_ROW):
                continue
            first = shared[row] if shared else 0
            self.tokens[row] = self.tokens[row][:first] + self.tokens[origin][first:position]
            if first == 0:
                self.sources[row] = self.sources[origin]
        del self.sources[len(origins) :], self.tokens[len(origins) :]
        self.width = width or self.width
        assert all(len(source) < self.width for source in self.sources)

    def clear(self) -> None:
        self.sources, self.tokens = [], []


class ListRunner:
    """The distribution of a row is a function of what its cache holds."""

    def __init__(self) -> None:
        self.cache = ListCache()
        self.asked: list[int] = []  # top_k of each step

    def encode(self, sources: Sequence[Any], held: int, width: int) -> None:
        self.cache.encode(sources, held, width)

    def step(
        self,
        tokens: list[int],
        positions: list[int],
        lengths: list[int],
        top_k: int,
        whole: Sequence[bool] | bool = True,
    ) -> StepOutputs:
        """Rows that did not ask for the whole distribution get numbers that nobody may use."""
        self.asked.append(top_k)
        assert len(tokens) == len(self.cache.sources)
        table = []
        for row, (token, position, length) in enumerate(zip(tokens, positions, lengths, strict=True)):
            assert length in (len(self.cache.sources[row]) + 1, 1)  # 1: the row of a search that has failed
            self.cache.tokens[row][position:] = [token]
            table.append(logprobs_after(self.cache.sources[row], self.cache.tokens[row]))
        values = np.array(table)
        top = np.argsort(-values, axis=1, kind="stable")[:, : min(top_k, VOCABULARY)]
        given = np.where(np.broadcast_to(whole, len(values))[:, None], values, np.nan)
        return StepOutputs(top, np.take_along_axis(values, top, 1), given)


def logprobs_after(source: Sequence[int], cached: Sequence[int]) -> Any:
    logits = np.random.default_rng([len(source), *source, *cached]).normal(size=VOCABULARY) * 2
    return (logits - np.log(np.exp(logits).sum())).astype(np.float32)


def job(task: Task, callback: Callback | None = None) -> Job:
    return Job(task, 0, callback or Callback(), None, 0.0, SPECIAL, EngineObserver())


def alone(task: Task) -> Any:
    """The result of a search that no rows are needed for."""
    search: Search = make_search(SPECIAL, task)
    runner = ListRunner()
    while not search.done:
        cached = [[SPECIAL.bos, *live.ids] for live in search.live]
        runner.cache.sources = [task.source] * len(cached)
        runner.cache.tokens = [tokens[:-1] for tokens in cached]
        count = len(cached)
        outputs = runner.step(
            [tokens[-1] for tokens in cached], [search.position] * count, [len(task.source) + 1] * count, VOCABULARY
        )
        rows = zip(outputs.top_ids.tolist(), outputs.top_logprobs.tolist(), outputs.logprobs, strict=True)
        search.advance([Row(*row) for row in rows])
    return search.result(NO_TIME)


def tasks() -> st.SearchStrategy[Task]:
    source = st.lists(st.integers(3, 8), min_size=1, max_size=20).map(tuple)
    beams = st.builds(Options, beam_size=st.integers(1, 6), max_length=st.integers(1, 9))
    samples = st.builds(
        Options, temperature=st.just(1.5), num_hypotheses=st.integers(1, 4), max_length=st.integers(1, 9)
    )
    return st.one_of(
        st.builds(Generate, source=source, options=beams | samples, prefix=st.sampled_from([(), (4,)])),
        st.builds(Score, source=source, target=source),
    )


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_a_hypothesis_continues_its_own_source_and_tokens_whatever_joins_and_leaves(data: st.DataObject) -> None:
    runner = ListRunner()
    rows = Rows(runner)  # type: ignore[arg-type]
    waiting = data.draw(st.lists(tasks(), min_size=1, max_size=8))
    running: list[Job] = []
    while waiting or running:
        count = data.draw(st.integers(0 if running else 1, len(waiting) or 0)) if waiting else 0
        joining, waiting = [job(task) for task in waiting[:count]], waiting[count:]
        if joining:
            rows.add(joining)
            running += joining
        if len(running) > 1 and data.draw(st.booleans()):
            leaving = running.pop(data.draw(st.integers(0, len(running) - 1)))
            rows.remove([leaving])
        candidates = rows.step()
        parents = {one: one.advance(candidates.of(one)) for one in running}
        rows.reorder(parents)
        for one in [one for one in running if not parents[one]]:
            running.remove(one)
            assert one.search.result(NO_TIME) == alone(one.task)
    assert rows._count == 0
    assert not rows._slots


def test_rows_are_dense_after_jobs_have_left() -> None:
    runner = ListRunner()
    rows = Rows(runner)  # type: ignore[arg-type]
    all_jobs = [job(Generate(source=(3,) * n, options=Options(max_length=9, min_length=9))) for n in (1, 2, 3)]
    rows.add(all_jobs)
    rows.remove(all_jobs[:1])
    assert [len(source) for source in runner.cache.sources] == [3, 2]
    assert rows.step().rows == 2
    rows.clear()
    assert runner.cache.sources == []


def test_what_one_search_wants_of_the_graph_is_bounded_and_the_largest_bounded_wish_is_what_is_asked() -> None:
    runner = ListRunner()
    rows = Rows(runner)  # type: ignore[arg-type]
    wishes = [
        Options(max_length=9),
        Options(max_length=9, beam_size=3),
        Options(max_length=9, temperature=1.0, top_k=31_000),
        Options(max_length=9, beam_size=MAX_GRAPH_TOP_K),
    ]
    rows.add([job(Generate(source=(3,), options=options)) for options in wishes])
    rows.step()
    assert runner.asked == [3 + 1 + 2]  # an end token; padding and start


@pytest.mark.parametrize("method", ["wanted", "last_tokens"])
def test_a_search_that_cannot_say_what_it_needs_fails_alone(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, broken, fine = ListRunner(), Callback(), Generate(source=(5, 4), options=Options(max_length=1))
    rows = Rows(runner)  # type: ignore[arg-type]
    jobs = [job(Generate(source=(3,), options=Options(max_length=9)), broken), job(fine)]

    def fail() -> None:
        raise RuntimeError("boom")

    rows.add(jobs)
    monkeypatch.setattr(jobs[0].search, method, fail, raising=True)
    candidates = rows.step()
    assert type(broken.wait()[0]).__name__ == "ServiceError"
    assert [one.advance(candidates.of(one)) for one in jobs] == [[], []]
    assert jobs[1].search.result(NO_TIME) == alone(fine)


def test_sources_are_encoded_in_groups_of_similar_length_each_once() -> None:
    rng = np.random.default_rng(0)
    lengths = sorted(int(n) for n in rng.integers(1, 60, 50))
    groups = group_by_length([(4,) * n for n in lengths])
    assert [len(source) for group in groups for source in group] == lengths
    for group in groups:
        tokens = sum(len(source) + 1 for source in group)
        padded = len(group) * (len(group[-1]) + 1)
        assert padded <= MAX_PADDED * tokens or tokens - len(group[-1]) - 1 < ENOUGH_SOURCE_TOKENS
