"""Searches driven by a hand-made table of log-probabilities, without an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attendant.service.engine.batch.job import make_search
from attendant.service.engine.search.beam import GenerateSearch
from attendant.service.engine.search.search import Row, SpecialIds
from attendant.service.engine.tasks import Generate, Hypothesis, Options, Timing

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


def row(values: np.ndarray, top: int, whole: bool = True) -> Row:
    """As a step gives it: without `whole`, of a search that does not need it, what `all` has means nothing."""
    order = np.argsort(-values, kind="stable")[:top]
    return Row(order.tolist(), values[order].tolist(), values if whole else np.full_like(values, np.nan))


def run(search: Any, logprobs: Table, extra: int = 0) -> list[Any]:
    """Drive a search to its end; the agreed tokens after each step."""
    agreed = []
    while not search.done:
        top, whole = search.wanted() + extra, search.needs_all()
        before = [list(live.ids) for live in search.live]
        parents = search.advance([row(logprobs(tuple(ids)), top, whole) for ids in before])
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
