"""The searches on hand-made tables: brute force is the oracle."""

from __future__ import annotations

import itertools
import math
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendant.model.search import reference
from attendant.model.text.tokenizer import BOS, EOS, PAD
from attendant.service.engine.batch.job import make_search
from attendant.service.engine.search.beam import GenerateSearch, repeating
from attendant.service.engine.search.search import Live, SpecialIds, common_prefix
from attendant.service.engine.tasks import Distribution, EarlyStopping, Generate, NextToken, Options, Score, Scored
from tests.support.tables import NO_TIME, SPECIAL, VOCABULARY, Table, generate, row, run, table


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
    seed=st.integers(0, 999),
    beam=st.integers(1, 5),
    penalty=st.sampled_from([0.0, 1.0]),
    minimum=st.integers(0, 4),
    repetition=st.sampled_from([1.0, 0.5, 1.7]),
    ngram=st.integers(0, 2),
    length=st.integers(1, 6),
)
def test_a_search_needs_no_more_candidates_than_it_asks_for(
    seed: int, beam: int, penalty: float, minimum: int, repetition: float, ngram: int, length: int
) -> None:
    options = {
        "beam_size": beam,
        "length_penalty": penalty,
        "min_length": minimum,
        "max_length": length,
        "repetition_penalty": repetition,
        "no_repeat_ngram_size": ngram,
    }
    assert generate(table(seed), **options) == generate(table(seed), extra=99, **options)


@settings(deadline=None, max_examples=200)
@given(
    seed=st.integers(0, 999),
    beam=st.integers(1, 6),
    count=st.integers(1, 6),
    penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    early=st.sampled_from([True, False, "never"]),
    length=st.integers(1, 7),
)
def test_the_search_is_the_reference(
    seed: int, beam: int, count: int, penalty: float, early: EarlyStopping, length: int
) -> None:
    special, logprobs = SpecialIds(pad=PAD, bos=BOS, eos=EOS), table(seed)
    options = Options(
        beam_size=beam,
        num_hypotheses=min(beam, count),
        length_penalty=penalty,
        early_stopping=early,
        max_length=length,
    )
    search = make_search(special, Generate(source=(), options=options))
    run(search, logprobs)
    with patch.object(reference, "next_logprobs", lambda _model, _source, prefix: logprobs(prefix).tolist()):
        wanted = reference.beam(None, [], beam, penalty, min(beam, count), length, early)  # type: ignore[arg-type]
    assert isinstance(search, GenerateSearch)
    found = [(hypothesis.ids, hypothesis.logprobs, hypothesis.finish_reason) for hypothesis in search.best()]
    assert found == [(hypothesis.ids, hypothesis.logprobs, hypothesis.finish_reason) for hypothesis in wanted]


def falling(prefix: tuple[int, ...]) -> np.ndarray:
    """The end token is second best at first, and later never near."""
    end = 0.3 if not prefix else 0.01
    return np.log(np.array([1e-9, 1e-9, end, 0.6 - end / 2, 0.3 - end / 2, 0.1], np.float32))


def test_a_hypothesis_that_finishes_leaves_its_place_to_the_next_best() -> None:
    options = Options(beam_size=2, num_hypotheses=2, max_length=9, length_penalty=0.0)
    search = GenerateSearch(SPECIAL, Generate(source=(), options=options))
    search.advance([row(falling(()), 5)])
    assert [ids.ids for _, ids in search.ended] == [()]
    assert [live.ids for live in search.live] == [[3], [4]]


@pytest.mark.parametrize(("early", "length"), [(False, 6), ("never", 6), (True, 2)])
def test_only_early_stopping_loses_a_sure_answer_to_short_ones_that_finish_first(
    early: EarlyStopping, length: int
) -> None:
    """The answer is 3 3 3 3 3 3; a hypothesis that leaves it ends at once."""

    def sure(prefix: tuple[int, ...]) -> np.ndarray:
        on_the_way = all(token == 3 for token in prefix) and len(prefix) < 6
        probable = {3: 0.9, 4: 0.04, 5: 0.03, SPECIAL.eos: 0.02} if on_the_way else {SPECIAL.eos: 0.95, 3: 0.03}
        return np.log(np.array([probable.get(token, 1e-3) for token in range(VOCABULARY)], np.float32))

    best = generate(sure, beam_size=2, max_length=9, early_stopping=early)[0]
    assert len(best.ids) == length


def test_an_end_token_behind_the_first_beam_size_candidates_finishes_nothing() -> None:
    def third(_: tuple[int, ...]) -> np.ndarray:
        return np.log(np.array([1e-9, 1e-9, 0.2, 0.4, 0.3, 0.1], np.float32))

    search = GenerateSearch(SPECIAL, Generate(source=(), options=Options(beam_size=2, max_length=9)))
    search.advance([row(third(()), 5)])
    assert search.ended == []
    assert [live.ids for live in search.live] == [[3], [4]]


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 999), beam=st.integers(1, 6), early=st.sampled_from([True, False, "never"]))
def test_a_search_never_holds_more_rows_than_its_task_may_occupy(seed: int, beam: int, early: EarlyStopping) -> None:
    task = Generate(source=(), options=Options(beam_size=beam, max_length=7, early_stopping=early))
    search = GenerateSearch(SPECIAL, task)
    while not search.done:
        search.advance([row(table(seed)(tuple(live.ids)), VOCABULARY) for live in search.live])
        assert len(search.live) <= task.rows
        assert len(search.ended) <= beam


@settings(deadline=None, max_examples=200)
@given(
    seed=st.integers(0, 999),
    beam=st.integers(1, 5),
    best_of_all=st.booleans(),
    penalty=st.sampled_from([0.0, 1.0, 2.0]),
    early=st.sampled_from([True, False, "never"]),
    samples=st.booleans(),
    prefix=st.sampled_from([(), (4, 3)]),
)
def test_an_agreed_token_is_in_the_answer_and_is_never_taken_back(
    seed: int,
    beam: int,
    best_of_all: bool,
    penalty: float,
    early: EarlyStopping,
    samples: bool,
    prefix: tuple[int, ...],
) -> None:
    count = 1 if best_of_all else beam
    options = (
        Options(temperature=1.0, num_hypotheses=beam, max_length=7, seed=seed)
        if samples
        else Options(beam_size=beam, num_hypotheses=count, length_penalty=penalty, early_stopping=early, max_length=7)
    )
    search = make_search(SPECIAL, Generate(source=(), prefix=prefix, options=options, top_logprobs=2))
    agreed = run(search, table(seed))
    assert isinstance(search, GenerateSearch)
    best = search.best()[0]
    answer = (best.ids, best.logprobs[: len(best.ids)], best.top_logprobs[: len(best.ids)])
    assert agreed[-1] == answer
    for earlier, later in itertools.pairwise(agreed):
        assert all(new[: len(old)] == old for old, new in zip(earlier, later, strict=True))


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


@pytest.mark.parametrize(
    "options", [{}, {"beam_size": 3, "num_hypotheses": 3}, {"temperature": 1.0, "num_hypotheses": 3}]
)
def test_a_forced_end_comes_in_the_last_place_of_the_limit(options: dict[str, Any]) -> None:
    forced = generate(table(3), max_length=4, min_length=3, forced_end=True, **options)
    for found in forced:
        assert (len(found.ids), len(found.logprobs), found.finish_reason) == (3, 4, "length")
        assert found.logprobs[-1] == pytest.approx(float(table(3)(found.ids)[SPECIAL.eos]))


def test_a_forced_end_costs_nothing_in_the_ranking() -> None:
    """The best of all is the best beginning of a hypothesis, however unlikely its end is."""
    best = generate(table(5), max_length=3, min_length=2, forced_end=True, beam_size=6)[0]
    candidates = itertools.product(range(3, VOCABULARY), repeat=2)
    assert best.ids == max(candidates, key=lambda ids: float(table(5)(())[ids[0]] + table(5)(ids[:1])[ids[1]]))


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


def test_a_row_gives_the_same_tokens_whether_the_graph_has_enough_of_them_or_not() -> None:
    values = table(1)(())
    assert row(values, 1).top(4) == row(values, 5).top(4)


def test_when_time_is_up_the_best_so_far_is_answered() -> None:
    search = GenerateSearch(SPECIAL, Generate(source=(), options=Options(beam_size=2, max_length=9, min_length=9)))
    assert search.best(cut_short=True) == ()
    search.advance([row(table(1)(()), 5)])
    found = search.best(cut_short=True)
    assert [hypothesis.finish_reason for hypothesis in found] == ["deadline"]
    assert found[0].ids == tuple(max(search.live, key=lambda live: live.total).ids)


def test_what_is_found_when_time_is_up_is_cut_short_though_it_had_ended() -> None:
    options = Options(beam_size=2, max_length=9, early_stopping="never")
    search = GenerateSearch(SPECIAL, Generate(source=(), options=options))
    while not search.ended:
        search.advance([row(table(1)(tuple(live.ids)), 5) for live in search.live])
    assert search.live
    found = search.partial_result(NO_TIME)
    assert found is not None
    assert [hypothesis.finish_reason for hypothesis in found.hypotheses] == ["stop"]
    assert found.cut_short
    run(search, table(1))
    assert not search.result(NO_TIME).cut_short


@pytest.mark.parametrize("options", [{"beam_size": 2}, {"temperature": 1.0}], ids=str)
def test_a_prefix_alone_is_no_answer_when_time_is_up(options: dict[str, Any]) -> None:
    search = make_search(SPECIAL, Generate(source=(), prefix=(4, 3), options=Options(max_length=9, **options)))
    for ids in ((), (4,)):
        search.advance([row(table(1)(ids), 5)])
        assert search.partial_result(NO_TIME) is None
    search.advance([row(table(1)((4, 3)), 5)])
    assert search.partial_result(NO_TIME) is not None


def test_repeating_tokens_complete_an_n_gram_that_is_there() -> None:
    assert repeating([1, 2, 3, 1, 2], 3) == {3}
    assert repeating([1, 2, 3], 1) == {1, 2, 3}
    assert repeating([1, 2], 3) == set()
    assert repeating([1, 2, 1], 0) == set()
