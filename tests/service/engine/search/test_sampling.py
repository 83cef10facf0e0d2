"""Samples on hand-made tables: their distribution, their order, and that they depend on nothing but their seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendant.service.engine.batch.job import make_search
from attendant.service.engine.search.beam import GenerateSearch
from attendant.service.engine.search.sampling import SampleSearch, nucleus, uniform
from attendant.service.engine.tasks import Generate, Options
from tests.support.tables import SPECIAL, VOCABULARY, generate, row, run, table


def test_every_token_of_the_first_sample_is_agreed_at_once() -> None:
    options = Options(temperature=1.0, num_hypotheses=3, max_length=7, min_length=7)
    search = make_search(SPECIAL, Generate(source=(), options=options))
    assert [len(ids) for ids, _, _ in run(search, table(0))] == [1, 2, 3, 4, 5, 6, 7]


def test_samples_follow_the_distribution() -> None:
    """The first token of 4,000 samples, against softmax(log p / temperature) without padding and start."""
    values = table(5)(()).astype(np.float64)
    shares = np.exp(values / 0.8)
    shares[[SPECIAL.pad, SPECIAL.bos]] = 0
    shares /= shares.sum()
    counts = np.zeros(VOCABULARY)
    for seed in range(4000):
        options = Options(temperature=0.8, max_length=1, seed=seed)
        search = SampleSearch(SPECIAL, Generate(source=(), options=options))
        run(search, table(5))
        found = search.best()[0]
        counts[found.ids[0] if found.ids else SPECIAL.eos] += 1
    assert np.abs(counts / 4000 - shares).max() < 0.03


@pytest.mark.parametrize("few", [{"top_k": 2}, {"top_p": 0.5}, {"top_k": 3, "top_p": 0.6}])
def test_samples_stay_among_the_most_probable(few: dict[str, Any]) -> None:
    values = table(5)(()).astype(np.float64)
    values[[SPECIAL.pad, SPECIAL.bos]] = -np.inf
    order = np.argsort(-values)
    shares = np.exp(values[order])
    allowed = set(order[: few.get("top_k", VOCABULARY)].tolist())
    if "top_p" in few:
        shares = shares[: few.get("top_k", VOCABULARY)] / shares[: few.get("top_k", VOCABULARY)].sum()
        allowed &= set(order[: int(np.searchsorted(np.cumsum(shares), few["top_p"])) + 1].tolist())
    seen = set()
    for seed in range(200):
        found = generate(table(5), temperature=1.0, max_length=1, seed=seed, **few)[0]
        seen.add(found.ids[0] if found.ids else SPECIAL.eos)
    assert seen == allowed


def test_a_seed_gives_the_same_samples_and_another_seed_others() -> None:
    options = {"temperature": 1.5, "num_hypotheses": 4, "max_length": 8}
    first = generate(table(1), seed=7, **options)
    assert first == generate(table(1), seed=7, **options)
    assert first != generate(table(1), seed=8, **options)
    assert len({hypothesis.ids for hypothesis in first}) > 1


def test_samples_come_in_their_own_order() -> None:
    """Sample k is the same whether it is asked for alone with the others or as the last of k."""
    options = {"temperature": 1.5, "max_length": 8, "seed": 7}
    samples = generate(table(1), num_hypotheses=6, **options)
    for count in range(1, 6):
        assert generate(table(1), num_hypotheses=count, **options) == samples[:count]
    scores = [sample.score for sample in samples]
    assert scores != sorted(scores, reverse=True)


def test_samples_that_are_cut_short_come_in_their_own_order() -> None:
    options = Options(temperature=2.0, num_hypotheses=8, max_length=9, seed=2)
    search = make_search(SPECIAL, Generate(source=(), options=options))
    whole = generate(table(1), **vars(options))
    for _ in range(3):
        search.advance([row(table(1)(tuple(live.ids)), 1) for live in search.live])
    assert isinstance(search, GenerateSearch)
    found = search.best(cut_short=True)
    assert {hypothesis.finish_reason for hypothesis in found} == {"stop", "deadline"}
    for short, full in zip(found, whole, strict=True):
        assert short.ids == full.ids[:3]


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 99),
    top_k=st.integers(1, 7),
    top_p=st.sampled_from([None, 0.7]),
    penalty=st.sampled_from([0.7, 1.0, 1.4]),
    ngram=st.integers(0, 2),
    minimum=st.integers(0, 3),
)
def test_a_sample_is_the_same_from_the_graphs_top_k_and_from_the_whole_distribution(
    seed: int, top_k: int, top_p: float | None, penalty: float, ngram: int, minimum: int
) -> None:
    options = Options(
        temperature=1.3,
        num_hypotheses=2,
        max_length=6,
        seed=seed,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=penalty,
        no_repeat_ngram_size=ngram,
        min_length=minimum,
    )
    searches = [SampleSearch(SPECIAL, Generate(source=(), options=options)) for _ in range(2)]
    for search, graph_top_k in zip(searches, (VOCABULARY, 1), strict=True):
        while not search.done:
            search.advance([row(table(seed)(tuple(live.ids)), graph_top_k) for live in search.live])
    assert searches[0].best() == searches[1].best()


def test_random_numbers_are_spread_evenly_and_depend_on_every_argument() -> None:
    numbers = [uniform(seed, stream, step) for seed in range(20) for stream in range(10) for step in range(10)]
    assert len(set(numbers)) == len(numbers)
    assert np.histogram(numbers, bins=10, range=(0, 1))[0] == pytest.approx(np.full(10, 200), rel=0.25)
    assert uniform(-1, 0, 0) != uniform(1, 0, 0)


def test_the_nucleus_is_the_fewest_that_reach_the_share() -> None:
    ids, shares = nucleus(np.array([7, 8, 9]), np.array([0.2, 0.5, 0.3]), 0.5)
    assert (ids.tolist(), shares.tolist()) == ([8], [0.5])
    assert nucleus(np.array([7, 8, 9]), np.array([0.2, 0.5, 0.3]), 0.51)[0].tolist() == [8, 9]
