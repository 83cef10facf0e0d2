"""Constraints on hand-made tables: brute force is the oracle, of what may be answered and of which is the best."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendant.service.engine.batch.job import make_search
from attendant.service.engine.search.beam import GenerateSearch, repeating
from attendant.service.engine.search.constraints.choices import Choices
from attendant.service.engine.search.constraints.constraints import Constraints
from attendant.service.engine.search.constraints.forbidden import Forbidden, Phrase, chain
from attendant.service.engine.search.constraints.grouped_beam import allocate
from attendant.service.engine.search.constraints.terms import Form, Term, met_terms
from attendant.service.engine.tasks import Distribution, Generate, Hypothesis, Ids, NextToken, Options
from tests.support.tables import NO_TIME, SPECIAL, VOCABULARY, Table, row, run, table

WIDE = 400  # a beam as wide as all hypotheses
WORDS = range(3, VOCABULARY)
phrases = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(tuple), min_size=1, max_size=2)


def term(*forms: Ids) -> Term:
    return Term(tuple(Form(ids, str(ids)) for ids in forms))


def contains(ids: Ids, phrase: Ids) -> bool:
    return any(ids[place : place + len(phrase)] == phrase for place in range(len(ids)))


def answers(logprobs: Table, constraints: Constraints, prefix: Ids = (), **options: Any) -> tuple[Hypothesis, ...]:
    task = Generate(source=(), prefix=prefix, options=Options(**options), constraints=constraints)
    search = make_search(SPECIAL, task)
    agreed = run(search, logprobs)
    assert isinstance(search, GenerateSearch)
    best = search.best()
    for tokens, logprobs_so_far, _ in agreed:  # what was streamed is never taken back
        assert best[0].ids[: len(tokens)] == tokens
        assert best[0].logprobs[: len(tokens)] == logprobs_so_far
    return best


def every_answer(logprobs: Table, max_length: int, penalty: float = 1.0) -> list[tuple[float, Ids]]:
    """(score, ids) of every hypothesis without constraints, best first."""
    found = []
    for length in range(max_length + 1):
        for ids in itertools.product(WORDS, repeat=length):
            tokens = (*ids, SPECIAL.eos) if length < max_length else ids
            total = sum(float(logprobs(tokens[:place])[token]) for place, token in enumerate(tokens))
            found.append((total / len(tokens) ** penalty, ids))
    return sorted(found, key=lambda entry: -entry[0])


def missing(ids: Ids, forms: list[list[Ids]]) -> int:
    """Tokens that the terms still take, one after the other; of one alone, those that have come need not come again."""
    unmet = [each for each in forms if not any(contains(ids, form) for form in each)]
    saved = [
        min(map(len, each)) - len(form) + count
        for each in unmet
        for form in each
        for count in range(1, len(form))
        if ids[len(ids) - count :] == form[:count] and len(ids) >= count
    ]
    return sum(min(map(len, each)) for each in unmet) - max([0, *saved])


def assert_best(found: tuple[Hypothesis, ...], wanted: list[tuple[float, Ids]]) -> None:
    assert [hypothesis.ids for hypothesis in found] == [ids for _, ids in wanted[: len(found)]]
    assert [hypothesis.score for hypothesis in found] == pytest.approx([score for score, _ in wanted[: len(found)]])


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 999), forms=st.lists(phrases, min_size=1, max_size=2), penalty=st.sampled_from([0.0, 1.0]))
def test_a_wide_grouped_beam_finds_the_best_of_all_answers_with_the_terms(
    seed: int, forms: list[list[Ids]], penalty: float
) -> None:
    terms = tuple(term(*each) for each in forms)
    length = max(4, sum(each.shortest for each in terms))
    options = {"beam_size": WIDE, "num_hypotheses": 3, "length_penalty": penalty, "early_stopping": "never"}
    if length > 5:
        return  # too many for brute force
    found = answers(table(seed), Constraints(terms=terms), max_length=length, **options)
    wanted = [
        (score, ids)
        for score, ids in every_answer(table(seed), length, penalty)
        if all(any(contains(ids, form) for form in each) for each in forms)
        and all(place + missing(ids[:place], forms) <= length for place in range(len(ids)))
    ]
    assert_best(found, wanted)
    assert all(each.met for hypothesis in found for each in hypothesis.terms)


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 999),
    forms=st.lists(phrases, min_size=1, max_size=3),
    beam=st.integers(1, 6),
    early=st.sampled_from([True, False, "never"]),
    room=st.integers(0, 5),
    forced_end=st.booleans(),
    minimum=st.integers(0, 3),
    repetition=st.sampled_from([1.0, 0.5, 1.7]),
)
def test_terms_that_fit_come_in_every_answer_however_small_the_beam(
    seed: int,
    forms: list[list[Ids]],
    beam: int,
    early: Any,
    room: int,
    forced_end: bool,
    minimum: int,
    repetition: float,
) -> None:
    terms = tuple(term(*each) for each in forms)
    length = sum(each.shortest for each in terms) + room + forced_end
    found = answers(
        table(seed),
        Constraints(terms=terms),
        beam_size=beam,
        num_hypotheses=min(beam, 2),
        max_length=length,
        min_length=min(minimum, length - 1),
        early_stopping=early,
        forced_end=forced_end,
        repetition_penalty=repetition,
    )
    assert found
    for hypothesis in found:
        assert all(any(contains(hypothesis.ids, form) for form in each) for each in forms)
        assert [each.met for each in hypothesis.terms] == [True] * len(terms)
        assert len(hypothesis.logprobs) <= length
        total = sum(
            float(table(seed)(hypothesis.ids[:place])[token])
            for place, token in enumerate((*hypothesis.ids, SPECIAL.eos)[: len(hypothesis.logprobs)])
        )
        assert sum(hypothesis.logprobs) == pytest.approx(total)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 999), beam=st.integers(2, 5), early=st.sampled_from([True, False, "never"]))
def test_a_grouped_beam_without_terms_to_meet_is_a_plain_beam(seed: int, beam: int, early: Any) -> None:
    options = {"beam_size": beam, "num_hypotheses": beam, "max_length": 6, "early_stopping": early}
    prefix = (3,)
    plain = answers(table(seed), Constraints(), prefix, **options)
    with_term = answers(table(seed), Constraints(terms=(term((3,)),)), prefix, **options)
    assert [(each.ids, each.logprobs, each.score) for each in with_term] == [
        (each.ids, each.logprobs, each.score) for each in plain
    ]


def test_a_form_at_the_start_counts_there_alone() -> None:
    bare = Term((Form((4,), "a", at_edge=True), Form((5,), " a")))
    assert met_terms([bare], (4, 3))[0].met
    assert not met_terms([bare], (3, 4))[0].met
    found = answers(table(1), Constraints(terms=(bare,)), beam_size=4, max_length=6)[0].ids
    assert found[0] == 4 or 5 in found


def test_terms_against_the_rules_are_told_as_not_met() -> None:
    constraints = Constraints(terms=(term((3, 4)),), forbidden=Forbidden([chain((4,))]))
    found = answers(table(0), constraints, beam_size=2, max_length=4)
    assert found
    assert [each.met for each in found[0].terms] == [False]


def test_an_answer_that_is_cut_short_has_as_many_terms_as_there_were() -> None:
    task = Generate(
        source=(), options=Options(beam_size=4, max_length=9), constraints=Constraints(terms=(term((3, 4)), term((5,))))
    )
    search = make_search(SPECIAL, task)
    for _ in range(2):
        search.advance([row(table(3)(tuple(live.ids)), VOCABULARY) for live in search.live])
    result = search.partial_result(NO_TIME)
    assert result is not None
    missing = [sum(not each.met for each in met_terms(task.constraints.terms, live.ids)) for live in search.live]  # type: ignore[union-attr]
    assert sum(not each.met for each in result.hypotheses[0].terms) == min(missing)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("sizes", "count", "wanted"),
    [
        ({0: 9, 2: 9}, 4, {0: 2, 2: 2}),
        ({0: 9, 2: 9}, 5, {0: 2, 2: 3}),
        ({0: 9, 1: 9, 2: 1}, 6, {0: 2, 1: 3, 2: 1}),
        ({0: 9, 1: 9, 2: 9}, 2, {0: 0, 1: 1, 2: 1}),
        ({0: 1, 2: 1}, 5, {0: 1, 2: 1}),
    ],
)
def test_groups_get_even_shares_and_the_furthest_what_is_left(
    sizes: dict[int, int], count: int, wanted: dict[int, int]
) -> None:
    groups = {group: [10 * group + place for place in range(size)] for group, size in sizes.items()}
    found = allocate(groups, count)
    assert {group: sum(place in groups[group] for place in found) for group in sizes} == wanted


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 999), forbidden=phrases, penalty=st.sampled_from([0.0, 1.0]))
def test_a_wide_beam_finds_the_best_of_all_answers_without_the_forbidden(
    seed: int, forbidden: list[Ids], penalty: float
) -> None:
    constraints = Constraints(forbidden=Forbidden(map(chain, forbidden)))
    options = {"beam_size": WIDE, "num_hypotheses": 3, "length_penalty": penalty, "early_stopping": "never"}
    found = answers(table(seed), constraints, max_length=4, **options)
    allowed = [
        (score, ids)
        for score, ids in every_answer(table(seed), 4, penalty)
        if not any(contains(ids, phrase) for phrase in forbidden)
    ]
    assert_best(found, allowed)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 999), forbidden=phrases, beam=st.integers(1, 3), temperature=st.sampled_from([None, 1.0]))
def test_no_answer_has_what_is_forbidden(seed: int, forbidden: list[Ids], beam: int, temperature: float | None) -> None:
    options: dict[str, Any] = {"max_length": 8, "num_hypotheses": beam, "seed": seed}
    options |= {"beam_size": beam} if temperature is None else {"temperature": temperature, "top_k": 1 + seed % 4}
    for hypothesis in answers(table(seed), Constraints(forbidden=Forbidden(map(chain, forbidden))), **options):
        assert not any(contains(hypothesis.ids, phrase) for phrase in forbidden)


def test_every_cut_of_a_forbidden_phrase_into_tokens_is_forbidden() -> None:
    """Token 5 is 3 and 4 in one."""
    forbidden = Forbidden([Phrase(((0, 3, 1), (1, 4, 2), (2, 3, 3), (0, 5, 2)))])
    assert forbidden.next_tokens((3, 4)) == forbidden.next_tokens((5,)) == {3}
    assert forbidden.next_tokens((4,)) == forbidden.next_tokens((5, 4)) == set()
    assert forbidden.occurs_in((4, 5, 3))
    assert not forbidden.occurs_in((5, 4, 3))


def test_a_phrase_at_the_start_is_forbidden_there_alone() -> None:
    forbidden = Forbidden([chain((3, 4), at_edge=True), chain((5,), at_edge=True)])
    assert forbidden.next_tokens(()) == {5}
    assert forbidden.next_tokens((3,)) == {4}
    assert forbidden.next_tokens((3, 3)) == forbidden.next_tokens((5, 3)) == set()


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 999),
    choices=st.sets(st.lists(st.sampled_from(WORDS), max_size=3).map(tuple), min_size=1, max_size=6),
    penalty=st.sampled_from([0.0, 1.0]),
)
def test_a_beam_as_wide_as_the_choices_finds_the_best_of_them(seed: int, choices: set[Ids], penalty: float) -> None:
    found = answers(
        table(seed),
        Constraints(choices=Choices(sorted(choices))),
        beam_size=len(choices),
        num_hypotheses=len(choices),
        length_penalty=penalty,
        max_length=5,
        early_stopping="never",
    )
    assert_best(found, [(score, ids) for score, ids in every_answer(table(seed), 4, penalty) if ids in choices])
    assert len(found) == len(choices)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 999),
    choices=st.sets(st.lists(st.sampled_from(WORDS), max_size=4).map(tuple), min_size=1, max_size=6),
    beam=st.integers(1, 3),
    temperature=st.sampled_from([None, 1.0]),
    repetition=st.sampled_from([1.0, 0.5, 1.7]),
    forced_end=st.booleans(),
)
def test_an_answer_is_one_of_the_choices(
    seed: int, choices: set[Ids], beam: int, temperature: float | None, repetition: float, forced_end: bool
) -> None:
    options: dict[str, Any] = {"num_hypotheses": beam, "repetition_penalty": repetition, "seed": seed}
    options |= {"beam_size": beam} if temperature is None else {"temperature": temperature, "top_k": 1 + seed % 4}
    constraints = Constraints(choices=Choices(sorted(choices)))
    longest = max(map(len, choices)) + 1
    for hypothesis in answers(table(seed), constraints, max_length=longest, forced_end=forced_end, **options):
        assert hypothesis.ids in choices


def test_a_choice_of_probability_zero_still_comes_where_it_is_the_only_one() -> None:
    def never_three(_prefix: Ids) -> np.ndarray:
        return np.array([-9, -9, -1, -np.inf, -1, -2], np.float32)

    for options in ({"beam_size": 2}, {"temperature": 1.0}):
        found = answers(never_three, Constraints(choices=Choices([(3,)])), max_length=4, **options)
        assert [hypothesis.ids for hypothesis in found] == [(3,)]


def test_a_distribution_gives_what_may_not_come_no_probability() -> None:
    def distribution(constraints: Constraints | None) -> np.ndarray:
        search = make_search(SPECIAL, NextToken(source=(), prefix=(3,), constraints=constraints))
        run(search, table(7))
        result = search.result(NO_TIME)
        assert isinstance(result, Distribution)
        return result.logprobs

    free = distribution(None)
    forbidding = distribution(Constraints(forbidden=Forbidden([chain((3, 4)), chain((5,)), chain((4, 3))])))
    assert np.isneginf(forbidding).nonzero()[0].tolist() == [4, 5]
    assert (forbidding[:4] == free[:4]).all()
    choosing = distribution(Constraints(choices=Choices([(3,), (3, 4), (5,)])))
    assert np.isfinite(choosing).nonzero()[0].tolist() == [SPECIAL.eos, 4]


def test_the_rules_are_those_of_transformers() -> None:
    """The tokens that may come next, after random targets."""
    torch = pytest.importorskip("torch")
    processors = pytest.importorskip("transformers.generation.logits_process")
    rng = np.random.default_rng(5)
    bad = [[3], [4, 5], [5, 3, 3]]
    answered = [(3, 4), (3, 5, 5), (4,)]
    forbidden, choices = Forbidden(map(chain, bad)), Choices(answered)
    no_bad_words = processors.NoBadWordsLogitsProcessor(bad, eos_token_id=SPECIAL.eos)
    no_repeat = processors.NoRepeatNGramLogitsProcessor(2)
    among = processors.PrefixConstrainedLogitsProcessor(
        lambda _, ids: choices.next_tokens(ids.tolist(), SPECIAL.eos) or [SPECIAL.pad], 1
    )

    def refused(processor: Any, ids: list[int]) -> set[int]:
        scores = processor(torch.tensor([ids], dtype=torch.long), torch.zeros(1, VOCABULARY))
        return set(torch.isneginf(scores[0]).nonzero().flatten().tolist())

    for _ in range(100):
        ids = rng.integers(3, VOCABULARY, rng.integers(1, 7)).tolist()
        assert refused(no_bad_words, ids) == forbidden.next_tokens(ids)
        assert refused(no_repeat, ids) == repeating(ids, 2)
    for ids in ([3], [3, 5], [4], [3, 4]):
        allowed = {
            answer[len(ids)] if len(answer) > len(ids) else SPECIAL.eos
            for answer in answered
            if answer[: len(ids)] == tuple(ids)
        }
        assert refused(among, ids) == set(range(VOCABULARY)) - allowed


def test_a_term_of_several_improbable_tokens_is_not_put_off_to_the_end() -> None:
    """Its first token is always cheaper than its next ones: a fresh beginning must not push out one that goes on."""

    def logprobs(prefix: Ids) -> np.ndarray:
        values = np.array([-20, -20, -3.0, -0.3, -6, -6], np.float64)  # pad, start, end, a word, two improbable ones
        if len(prefix) >= 3:
            values[SPECIAL.eos] = 0.0
        return (values - np.log(np.exp(values).sum())).astype(np.float32)

    constraints = Constraints(terms=(term((4, 5, 4, 5)),))
    for beam in (2, 3, 5, 8):
        (best,) = answers(logprobs, constraints, beam_size=beam, max_length=40, length_penalty=0.0)
        assert len(best.ids) <= 7, best.ids
        assert best.terms[0].met
