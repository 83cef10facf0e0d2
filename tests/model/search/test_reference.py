from __future__ import annotations

import itertools

import pytest
import torch

from attendant.model.search.decode import decode_all
from attendant.model.search.reference import Hypothesis, beam, greedy, next_logprobs
from attendant.model.text.tokenizer import BOS, EOS, PAD
from tests.support.small_models import make_model

SOURCES = [[5, 6, 7], [8], [9, 10, 11, 12, 4], [4, 4], [12, 5, 9, 6]]


def sharp_model(seed: int, **changes: object) -> torch.nn.Module:
    """A random model that is sure of itself and that ends: the end token has a say of its own."""
    model = make_model(seed, max_length=8, target_vocab=7, **changes)
    with torch.no_grad():
        model.output.weight.mul_(2)
        model.output.weight[EOS] += 0.3
    return model


def every_hypothesis(model: torch.nn.Module, source: list[int], limit: int) -> list[Hypothesis]:
    """All targets of up to `limit` tokens, the end token included, with their log-probabilities."""
    tokens = [t for t in range(model.config.target_vocab) if t not in (PAD, BOS, EOS)]
    found = []
    for length in range(limit + 1):
        for ids in itertools.product(tokens, repeat=length):
            per_token = [next_logprobs(model, source, ids[:i])[t] for i, t in enumerate(ids)]
            if length < limit:
                found.append(Hypothesis(ids, (*per_token, next_logprobs(model, source, ids)[EOS]), "stop"))
            else:
                found.append(Hypothesis(ids, tuple(per_token), "length"))
    return found


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
def test_a_beam_as_wide_as_all_hypotheses_finds_the_best_of_them(penalty: float) -> None:
    model = sharp_model(3)
    for source in SOURCES[:2]:
        best = sorted(every_hypothesis(model, source, 3), key=lambda h: -h.score(penalty))[:4]
        found = beam(model, source, 200, penalty, num_hypotheses=4, max_length=3)
        assert [h.ids for h in found] == [h.ids for h in best]
        assert [h.score(penalty) for h in found] == pytest.approx([h.score(penalty) for h in best], abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_beam_one_is_greedy(seed: int) -> None:
    model = sharp_model(seed)
    for source in SOURCES:
        assert beam(model, source, 1) == [greedy(model, source)]


def test_a_score_counts_the_end_token() -> None:
    hypothesis = Hypothesis((5, 6), (-1.0, -2.0, -0.5), "stop")
    assert hypothesis.score(0.0) == -3.5
    assert hypothesis.score(1.0) == pytest.approx(-3.5 / 3)
    assert hypothesis.score(2.0) == pytest.approx(-3.5 / 9)


def test_hypotheses_come_best_first_and_differ() -> None:
    found = beam(sharp_model(1), SOURCES[0], beam_size=6, num_hypotheses=5)
    scores = [h.score(1.0) for h in found]
    assert scores == sorted(scores, reverse=True)
    assert len({h.ids for h in found}) == 5


def test_a_search_that_meets_the_limit_says_so() -> None:
    found = [greedy(make_model(seed), SOURCES[0], max_length=2) for seed in range(10)]
    assert {h.finish_reason for h in found} >= {"length"}
    for h in found:
        assert (h.finish_reason == "length") == (len(h.ids) == 2)
        assert len(h.logprobs) == min(2, len(h.ids) + 1)


@pytest.mark.parametrize("beam_size", [1, 2, 5])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_batched_search_finds_what_the_reference_finds(beam_size: int, penalty: float, norm: str) -> None:
    for seed in range(4):
        model = sharp_model(seed, norm=norm)
        expected = [list(beam(model, source, beam_size, penalty)[0].ids) for source in SOURCES]
        assert decode_all(model, SOURCES, beam_size, penalty) == expected


def test_a_beam_wider_than_the_vocabulary_searches_as_the_reference_does() -> None:
    model = sharp_model(2)
    assert decode_all(model, SOURCES, 7) == [list(beam(model, source, 7)[0].ids) for source in SOURCES]
