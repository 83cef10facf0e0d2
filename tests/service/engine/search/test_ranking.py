"""Candidates that are ranked together, against each search that ranks its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendant.service.engine.batch.job import Job
from attendant.service.engine.batch.rows import StepCandidates
from attendant.service.engine.batch.runner import StepOutputs
from attendant.service.engine.observer import EngineObserver
from attendant.service.engine.search.beam import GenerateSearch
from attendant.service.engine.search.ranking import rank_together
from attendant.service.engine.search.search import SpecialIds
from attendant.service.engine.tasks import Generate, Options
from tests.support.engines import Callback

SPECIAL = SpecialIds(0, 1, 2)
VOCABULARY = 9


def make_job(options: Options, **more: Any) -> Job:
    task = Generate(source=(3,), options=options, **more)
    return Job(task, 0, Callback(), None, 0.0, SPECIAL, EngineObserver())


def outputs(rng: np.random.Generator, rows: int, top_k: int) -> StepOutputs:
    """With equals among them: few different values."""
    logits = rng.integers(0, 4, (rows, VOCABULARY)).astype(np.float32)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    top = np.argsort(-logprobs, axis=1, kind="stable")[:, :top_k]
    return StepOutputs(top, np.take_along_axis(logprobs, top, 1), logprobs)


def state(job: Job) -> Any:
    search = job.search
    assert isinstance(search, GenerateSearch)
    return search.done, [(live.ids, live.logprobs, live.total, live.weight) for live in search.live], search.ended


options_of_a_search = st.builds(
    Options,
    beam_size=st.integers(1, 4),
    max_length=st.integers(1, 7),
    min_length=st.integers(0, 5),
    length_penalty=st.sampled_from([0.0, 1.0]),
    early_stopping=st.sampled_from([True, False, "never"]),
    forced_end=st.booleans(),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(options_of_a_search, min_size=1, max_size=12), st.integers(0, 2**32), st.booleans())
def test_what_is_ranked_together_is_what_each_search_ranks_alone(
    every: list[Options], seed: int, with_prefix: bool
) -> None:
    rng = np.random.default_rng(seed)
    prefix: tuple[int, ...] = (4,) if with_prefix else ()
    pairs = [(make_job(each, prefix=prefix), make_job(each, prefix=prefix)) for each in every]
    while pairs:
        slots: dict[Job, list[int]] = {}
        for job, _ in pairs:
            first = sum(map(len, slots.values()))
            slots[job] = [*range(first, first + len(job.search.live))]
        found = outputs(rng, sum(map(len, slots.values())), max(job.search.wanted() for job, _ in pairs))
        rows = StepCandidates(found, slots)
        ranked = rank_together([job for job, _ in pairs], slots, found)
        for job, twin in pairs:
            alone = twin.advance(rows.of(job))
            assert job.advance(rows.of(job), ranked.get(job)) == alone
            assert state(job) == state(twin)
        pairs = [(job, twin) for job, twin in pairs if not job.search.done]


def test_many_greedy_searches_are_ranked_together_and_few_are_not() -> None:
    jobs = [make_job(Options(max_length=5)) for _ in range(9)]
    slots = {job: [i] for i, job in enumerate(jobs)}
    found = outputs(np.random.default_rng(0), 9, 4)
    assert len(rank_together(jobs, slots, found)) == 9
    assert rank_together(jobs[:2], slots, found) == {}


@pytest.mark.parametrize(
    "more",
    [
        {"options": Options(max_length=5, repetition_penalty=1.2)},
        {"options": Options(max_length=5, no_repeat_ngram_size=2)},
        {"options": Options(max_length=5, temperature=1.0)},
        {"options": Options(max_length=5), "top_logprobs": 1},
        {"options": Options(max_length=5), "record": True},
        {"options": Options(max_length=5), "prefix": (4,)},
        {"options": Options(max_length=1, forced_end=True)},
    ],
)
def test_a_search_that_chooses_otherwise_is_left_to_itself(more: dict[str, Any]) -> None:
    jobs = [make_job(**more) for _ in range(9)]
    slots = {job: [i] for i, job in enumerate(jobs)}
    assert rank_together(jobs, slots, outputs(np.random.default_rng(0), 9, 4)) == {}


def test_tokens_that_are_impossible_are_left_to_each_search() -> None:
    jobs = [make_job(Options(max_length=5, beam_size=2)) for _ in range(9)]
    slots = {job: [i] for i, job in enumerate(jobs)}
    found = outputs(np.random.default_rng(0), 9, 6)
    found.top_logprobs[3, 5] = -np.inf
    assert rank_together(jobs, slots, found) == {}
