"""Softmax and top-k over a vocabulary: pure functions of log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attendant.service.engine.tasks import Array


@dataclass(frozen=True)
class TopTokens:
    """The most probable tokens of a distribution, best first."""

    ids: list[int]
    probabilities: list[float]
    logprobs: list[float]  # -inf where a probability is 0
    entropy: float  # of the whole distribution, in nats


def top_tokens(logprobs: Array, count: int, temperature: float) -> TopTokens:
    """The `count` most probable tokens (0: all) of softmax(logprobs / temperature); `logprobs` is (V,)."""
    scaled = logprobs.astype(np.float64) / temperature  # (V,)
    scaled -= scaled.max()
    scaled -= np.log(np.exp(scaled).sum())
    probabilities = np.exp(scaled)
    best = most_probable(scaled, count or len(scaled))
    return TopTokens(best.tolist(), probabilities[best].tolist(), scaled[best].tolist(), entropy_of(scaled))


def entropy_of(logprobs: Array) -> float:
    """Entropy of a distribution, in nats; `logprobs` is (V,)."""
    precise = logprobs.astype(np.float64)
    probabilities = np.exp(precise)
    positive = probabilities > 0
    return max(0.0, -float((probabilities[positive] * precise[positive]).sum()))


def most_probable(logprobs: Array, count: int) -> Array:
    """(V,) -> the ids of the `count` largest, largest first; the smaller id first among equals, as in the graphs."""
    if count >= len(logprobs):
        return np.argsort(-logprobs, kind="stable")
    threshold = np.partition(logprobs, -count)[-count]
    ids = np.flatnonzero(logprobs >= threshold)
    return ids[np.argsort(-logprobs[ids], kind="stable")[:count]]
