"""The searches on hand-made tables: brute force is the oracle."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.beam import GenerateSearch, repeating
from service.engine.job import make_search
from service.engine.sampling import SampleSearch, nucleus, uniform
from service.engine.search import Live, Row, SpecialIds, common_prefix, most_probable
from service.engine.tasks import Distribution, Generate, Hypothesis, NextToken, Options, Score, Scored, Timing

SPECIAL = SpecialIds(pad=0, bos=1, eos=2)
VOCABULARY = 6
NO_TIME = Timing(0.0, 0.0, 0.0)
Table = Callable[[tuple[int, ...]], np.ndarray]


def table(seed: int, vocabulary: int = VOCABULARY) -> Table:
    """The log-probabilities after any prefix: a function of the seed and the prefix alone."""

    def logprobs(prefix: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng([seed, *prefix])
        logits = rng.normal(size=vocabulary) * 2
        return (logits - np.log(np.exp(logits).sum())).astype(np.float32)

    return logprobs


def row(values: np.ndarray, top: int) -> Row:
    order = np.argsort(-values, kind="stable")[:top]
    return Row(order.tolist(), values[order].tolist(), values)


def run(search: Any, logprobs: Table, extra: int = 0) -> list[Any]:
    """Drive a search to its end; the agreed tokens after each step."""
    agreed = []
    while not search.done:
        top = min(search.wanted() + extra, VOCABULARY)
        before = [list(live.ids) for live in search.live]
        parents = search.advance([row(logprobs(tuple(ids)), top) for ids in before])
        for parent, live in zip(parents, search.live, strict=False):
            assert live.ids[:-1] == before[parent]
        if isinstance(search, GenerateSearch):
            agreed.append(search.agreed_tokens(0, search.agreed_length()))
    return agreed


def generate(logprobs: Table, prefix: tuple[int, ...] = (), extra: int = 0, **options: Any) -> tuple[Hypothesis, ...]:
    search = make_search(SPECIAL, Generate(source=(), prefix=prefix, options=Options(**options)))
    run(search, logprobs, extra)
    assert isinstance(search, GenerateSearch)
    return search.best()


def every_hypothesis(logprobs: Table, max_length: int, penalty: float) -> list[tuple[float, tuple[int, ...]]]:
    """(score, ids) of everything that may be answered, best first."""
    found = []
    for length in range(max_length + 1):
        for ids in itertools.product(range(3, VOCABULARY), repeat=length):
            ends = length < max_length  # else it is cut off by the limit
            tokens = (*ids, SPECIAL.eos) if ends else ids
            total = sum(float(logprobs(tokens[:i])[token]) for i, token in enumerate(tokens))
            found.append((total / len(tokens) ** penalty, ids))
    return sorted(found, key=lambda entry: -entry[0])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
def test_a_beam_as_wide_as_all_hypotheses_finds_the_best_of_brute_force(seed: int, penalty: float) -> None:
    wanted = every_hypothesis(table(seed), 4, penalty)[:3]
    found = generate(table(seed), beam_size=200, num_hypotheses=3, length_penalty=penalty, max_length=4)
    assert [hypothesis.ids for hypothesis in found] == [ids for _, ids in wanted]
    assert [hypothesis.score for hypothesis in found] == pytest.approx([score for score, _ in wanted])


@pytest.mark.parametrize("seed", range(8))
def test_beam_one_is_greedy(seed: int) -> None:
    ids: tuple[int, ...] = ()
    while len(ids) < 9:
        values = table(seed)(ids).copy()
        values[[SPECIAL.pad, SPECIAL.bos]] = -np.inf
        token = int(values.argmax())
        if token == SPECIAL.eos:
            break
        ids = (*ids, token)
    assert generate(table(seed), max_length=9)[0].ids == ids


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 999), beam=st.integers(1, 5), penalty=st.sampled_from([0.0, 1.0]), minimum=st.integers(0, 4),
    repetition=st.sampled_from([1.0, 0.5, 1.7]), ngram=st.integers(0, 2), length=st.integers(1, 6),
)  # fmt: skip
def test_a_search_needs_no_more_candidates_than_it_asks_for(
    seed: int, beam: int, penalty: float, minimum: int, repetition: float, ngram: int, length: int
) -> None:
    options = {
        "beam_size": beam, "length_penalty": penalty, "min_length": minimum, "max_length": length,
        "repetition_penalty": repetition, "no_repeat_ngram_size": ngram,
    }  # fmt: skip
    assert generate(table(seed), **options) == generate(table(seed), extra=99, **options)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 999), beam=st.integers(1, 4), samples=st.booleans(), prefix=st.sampled_from([(), (4, 3)]))
def test_an_agreed_token_is_in_the_answer_and_is_never_taken_back(
    seed: int, beam: int, samples: bool, prefix: tuple[int, ...]
) -> None:
    options = (
        Options(temperature=1.0, num_hypotheses=beam, max_length=7, seed=seed)
        if samples
        else Options(beam_size=beam, max_length=7)
    )
    search = make_search(SPECIAL, Generate(source=(), prefix=prefix, options=options, top_logprobs=2))
    agreed = run(search, table(seed))
    assert isinstance(search, GenerateSearch)
    best = search.best()[0]
    answer = (best.ids, best.logprobs[: len(best.ids)], best.top_logprobs[: len(best.ids)])
    assert agreed[-1] == answer
    for earlier, later in itertools.pairwise(agreed):
        assert all(new[: len(old)] == old for old, new in zip(earlier, later, strict=True))


def test_every_token_of_the_first_sample_is_agreed_at_once() -> None:
    options = Options(temperature=1.0, num_hypotheses=3, max_length=7, min_length=7)
    search = make_search(SPECIAL, Generate(source=(), options=options))
    assert [len(ids) for ids, _, _ in run(search, table(0))] == [1, 2, 3, 4, 5, 6, 7]


class CountedToken(int):
    """A token that counts how often any is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedToken.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


@pytest.mark.parametrize("apart", [False, True], ids=["beams agree", "beams never agree"])
def test_finding_the_agreed_tokens_takes_a_few_comparisons_for_each_step(apart: bool) -> None:
    length, beam = 200, 4
    search = GenerateSearch(SPECIAL, Generate(source=(), options=Options(beam_size=beam, max_length=length + 1)))
    CountedToken.compared = 0
    for step in range(1, length + 1):
        ids = [[3 + number * apart, *[4] * (step - 1)] for number in range(beam)]
        search.live = [Live([CountedToken(token) for token in beams], [0.0] * step) for beams in ids]
        assert search.agreed_length() == (0 if apart else step)
    assert CountedToken.compared <= 2 * beam * length


@pytest.mark.parametrize(("first", "second"), [([4] * 300, [4] * 300), ([4] * 300, [5] * 300), ([4, 5] * 99, [4] * 9)])
def test_a_common_prefix_is_found_with_each_token_compared_about_once(first: list[int], second: list[int]) -> None:
    expected = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(second))
    CountedToken.compared = 0
    assert common_prefix(list(map(CountedToken, first)), list(map(CountedToken, second))) == expected
    assert CountedToken.compared <= 2 * len(second)


def test_a_reported_score_is_that_of_the_reported_log_probabilities() -> None:
    for found in generate(table(3), beam_size=4, num_hypotheses=4, length_penalty=0.7, max_length=6, min_length=2):
        assert found.score == pytest.approx(sum(found.logprobs) / len(found.logprobs) ** 0.7)
        tokens = (*found.ids, SPECIAL.eos) if found.finish_reason == "stop" else found.ids
        assert found.logprobs == tuple(float(table(3)(tokens[:i])[t]) for i, t in enumerate(tokens))


def test_penalties_change_the_choice_and_not_what_is_reported() -> None:
    def again(prefix: tuple[int, ...]) -> np.ndarray:
        return np.log(np.array([1e-9, 1e-9, 0.05, 0.5, 0.3, 0.15], np.float32))

    assert generate(again, max_length=3)[0].ids == (3, 3, 3)
    penalised = generate(again, max_length=3, repetition_penalty=3.0)[0]
    assert penalised.ids == (3, 4, 5)
    assert penalised.logprobs == pytest.approx([math.log(0.5), math.log(0.3), math.log(0.15)])


def test_no_n_gram_comes_twice() -> None:
    for seed in range(6):
        ids = generate(table(seed), max_length=12, min_length=12, no_repeat_ngram_size=2)[0].ids
        pairs = list(itertools.pairwise(ids))
        assert len(set(pairs)) == len(pairs)


def test_a_search_with_every_token_forbidden_ends() -> None:
    found = generate(table(0), max_length=50, min_length=50, no_repeat_ngram_size=1)[0]
    assert sorted(found.ids) == [3, 4, 5]
    assert found.finish_reason == "length"


@pytest.mark.parametrize("beam", [1, 3])
def test_length_bounds_hold(beam: int) -> None:
    for seed in range(6):
        for found in generate(table(seed), beam_size=beam, num_hypotheses=beam, min_length=3, max_length=5):
            assert 3 <= len(found.ids) <= 5
            assert len(found.logprobs) <= 5


@pytest.mark.parametrize("beam", [1, 3])
def test_a_forced_prefix_is_the_answers_beginning_and_is_scored(beam: int) -> None:
    found = generate(table(1), prefix=(4, 3), beam_size=beam, max_length=5)[0]
    assert found.ids[:2] == (4, 3)
    assert found.logprobs[:2] == (float(table(1)(())[4]), float(table(1)((4,))[3]))


def test_a_prefix_as_long_as_the_limit_is_the_answer() -> None:
    found = generate(table(1), prefix=(4, 3), max_length=2)
    assert [(hypothesis.ids, hypothesis.finish_reason) for hypothesis in found] == [((4, 3), "length")]


def test_a_score_is_that_of_every_token_and_the_end() -> None:
    search = make_search(SPECIAL, Score(source=(), target=(3, 5)))
    run(search, table(2))
    tokens = (3, 5, SPECIAL.eos)
    result = search.result(NO_TIME)
    assert result == Scored(tuple(float(table(2)(tokens[:i])[t]) for i, t in enumerate(tokens)), NO_TIME)


def test_the_next_token_distribution_is_the_one_after_the_prefix() -> None:
    search = make_search(SPECIAL, NextToken(source=(), prefix=(3, 5)))
    run(search, table(2))
    result = search.result(NO_TIME)
    assert isinstance(result, Distribution)
    np.testing.assert_array_equal(result.logprobs, table(2)((3, 5)))
    assert result.prefix_logprobs == (float(table(2)(())[3]), float(table(2)((3,))[5]))


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


def expected_alternatives(logprobs: Table, ids: tuple[int, ...], count: int) -> tuple[tuple[int, float], ...]:
    values = logprobs(ids)
    order = sorted(range(VOCABULARY), key=lambda token: (-values[token], token))[:count]
    return tuple((token, float(values[token])) for token in order)


@pytest.mark.parametrize("count", [1, 3, VOCABULARY, 99])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam_size": 3, "num_hypotheses": 3},
        {"beam_size": 2, "repetition_penalty": 1.5, "min_length": 3},
        {"temperature": 1.0, "num_hypotheses": 3},
        {"temperature": 1.0, "top_k": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("prefix", [(), (4, 3)], ids=len)
def test_the_most_probable_tokens_are_recorded_at_every_position(
    count: int, options: dict[str, Any], prefix: tuple[int, ...]
) -> None:
    task = Generate(source=(), prefix=prefix, options=Options(max_length=6, **options), top_logprobs=count)
    for seed in range(4):
        search = make_search(SPECIAL, task)
        run(search, table(seed))
        assert isinstance(search, GenerateSearch)
        for found in search.best():
            tokens = (*found.ids, SPECIAL.eos) if found.finish_reason == "stop" else found.ids
            assert len(found.top_logprobs) == len(found.logprobs) == len(tokens)
            for i, top in enumerate(found.top_logprobs):
                assert top == expected_alternatives(table(seed), tokens[:i], count)


def test_without_being_asked_for_no_alternatives_are_recorded() -> None:
    assert generate(table(0), max_length=4)[0].top_logprobs == ()


def test_of_equally_probable_tokens_the_smaller_id_comes_first() -> None:
    values = np.array([-1.0, -2.0, -1.0, -0.5, -2.0, -1.0], np.float32)
    assert [most_probable(values, count).tolist() for count in (1, 2, 3, 5, 9)] == [
        [3],
        [3, 0],
        [3, 0, 2],
        [3, 0, 2, 5, 1],
        [3, 0, 2, 5, 1, 4],
    ]


def test_a_row_gives_the_same_tokens_whether_the_graph_has_enough_of_them_or_not() -> None:
    values = table(1)(())
    assert row(values, 1).top(4) == row(values, 5).top(4)


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


def test_when_time_is_up_the_best_so_far_is_answered() -> None:
    search = GenerateSearch(SPECIAL, Generate(source=(), options=Options(beam_size=2, max_length=9, min_length=9)))
    assert search.best(cut_short=True) == ()
    search.advance([row(table(1)(()), 5)])
    found = search.best(cut_short=True)
    assert [hypothesis.finish_reason for hypothesis in found] == ["deadline"]
    assert found[0].ids == tuple(max(search.live, key=lambda live: live.total).ids)


@pytest.mark.parametrize("options", [{"beam_size": 2}, {"temperature": 1.0}], ids=str)
def test_a_prefix_alone_is_no_answer_when_time_is_up(options: dict[str, Any]) -> None:
    search = make_search(SPECIAL, Generate(source=(), prefix=(4, 3), options=Options(max_length=9, **options)))
    for ids in ((), (4,)):
        search.advance([row(table(1)(ids), 5)])
        assert search.partial_result(NO_TIME) is None
    search.advance([row(table(1)((4, 3)), 5)])
    assert search.partial_result(NO_TIME) is not None


def test_random_numbers_are_spread_evenly_and_depend_on_every_argument() -> None:
    numbers = [uniform(seed, stream, step) for seed in range(20) for stream in range(10) for step in range(10)]
    assert len(set(numbers)) == len(numbers)
    assert np.histogram(numbers, bins=10, range=(0, 1))[0] == pytest.approx(np.full(10, 200), rel=0.25)
    assert uniform(-1, 0, 0) != uniform(1, 0, 0)


def test_repeating_tokens_complete_an_n_gram_that_is_there() -> None:
    assert repeating([1, 2, 3, 1, 2], 3) == {3}
    assert repeating([1, 2, 3], 1) == {1, 2, 3}
    assert repeating([1, 2], 3) == set()
    assert repeating([1, 2, 1], 0) == set()


def test_the_nucleus_is_the_fewest_that_reach_the_share() -> None:
    ids, shares = nucleus(np.array([7, 8, 9]), np.array([0.2, 0.5, 0.3]), 0.5)
    assert (ids.tolist(), shares.tolist()) == ([8], [0.5])
    assert nucleus(np.array([7, 8, 9]), np.array([0.2, 0.5, 0.3]), 0.51)[0].tolist() == [8, 9]
