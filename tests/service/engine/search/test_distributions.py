"""Softmax and top-k over a vocabulary, against the definition written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendant.service.engine.search.distributions import most_probable, top_tokens


def logprobs_of(levels: list[int]) -> np.ndarray:
    logits = np.array(levels, np.float64) / 2
    return (logits - math.log(np.exp(logits).sum())).astype(np.float32)


@settings(deadline=None)
@given(levels=st.lists(st.integers(-3, 3), min_size=1, max_size=40), count=st.integers(1, 45))
def test_the_most_probable_come_first_and_of_equals_the_smaller_id(levels: list[int], count: int) -> None:
    expected = sorted(range(len(levels)), key=lambda token: (-levels[token], token))[:count]
    assert most_probable(logprobs_of(levels), count).tolist() == expected
    assert top_tokens(logprobs_of(levels), count, 1.0).ids == expected


@settings(deadline=None)
@given(levels=st.lists(st.integers(-9, 9), min_size=1, max_size=20), temperature=st.sampled_from([0.5, 1.0, 3.0]))
def test_over_the_whole_vocabulary_it_is_softmax_with_its_entropy(levels: list[int], temperature: float) -> None:
    found = top_tokens(logprobs_of(levels), 0, temperature)
    powers = {token: math.exp(level / 2 / temperature) for token, level in enumerate(levels)}
    total = sum(powers.values())
    assert dict(zip(found.ids, found.probabilities, strict=True)) == pytest.approx(
        {token: power / total for token, power in powers.items()}, abs=1e-6
    )
    assert found.logprobs == pytest.approx([math.log(p) for p in found.probabilities], abs=1e-9)
    assert found.entropy == pytest.approx(-sum(p * math.log(p) for p in found.probabilities), abs=1e-6)


def test_a_token_that_cannot_come_has_no_share_of_the_entropy() -> None:
    found = top_tokens(np.array([0.0, -np.inf], dtype=np.float32), 0, 1.0)
    assert (found.probabilities, found.entropy) == ([1.0, 0.0], 0.0)
