"""Softmax over a vocabulary, against its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest

from service.engine.distributions import top_tokens


@pytest.mark.parametrize("temperature", [0.1, 1.0, 7.0])
@pytest.mark.parametrize("count", [0, 1, 5, 1000])
def test_the_top_tokens_are_the_first_of_the_softmax(count: int, temperature: float) -> None:
    logits = np.random.default_rng(0).normal(size=50).astype(np.float32)
    weights = [math.exp(float(logit) / temperature) for logit in logits]
    expected = [weight / sum(weights) for weight in weights]
    order = sorted(range(50), key=lambda index: -expected[index])
    found = top_tokens(logits, count, temperature)
    assert found.ids == order[: count or 50]
    assert found.probabilities == pytest.approx([expected[index] for index in found.ids])
    assert found.logprobs == pytest.approx([math.log(expected[index]) for index in found.ids])
    assert found.entropy == pytest.approx(-sum(p * math.log(p) for p in expected))


def test_equal_tokens_come_in_the_order_of_their_ids() -> None:
    assert top_tokens(np.zeros(9, dtype=np.float32), 0, 1.0).ids == list(range(9))


def test_a_token_that_cannot_come_has_no_share_of_the_entropy() -> None:
    found = top_tokens(np.array([0.0, -np.inf], dtype=np.float32), 0, 1.0)
    assert (found.probabilities, found.entropy) == ([1.0, 0.0], 0.0)
