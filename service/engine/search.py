"""What every search is: pure over the candidates that a step hands it, one object for each task, no tensors of a batch.

A search has live hypotheses. It says which token each is to be extended from, and how many of the likeliest next tokens
it needs; `advance` takes those and answers which live hypothesis each new one continues. The searches here are given
their tokens; those in `beam.py` and `sampling.py` choose. What is chosen may be weighed by penalties and temperature,
and what is reported is always the model's own log-probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from service.engine.tasks import Array, Ids, NextToken, Score


@dataclass(frozen=True)
class Special:
    """The ids that mean something to a search."""

    pad: int
    bos: int
    eos: int


class Row(NamedTuple):
    """The next tokens of one live hypothesis."""

    ids: Sequence[int]  # the likeliest, at least as many as were asked for (or the whole vocabulary), likeliest first
    logprobs: Sequence[float]  # theirs
    all: Array  # (V,), the log-probability of every token


@dataclass(slots=True)
class Live:
    """A hypothesis that goes on. `weight` is what it is ranked by: the sum, as penalties have it."""

    ids: list[int]
    logprobs: list[float]
    total: float = 0.0
    weight: float = 0.0
    stream: int = 0  # which of several samples it is

    def extended(self, token: int, logprob: float, weight: float) -> Live:
        return Live([*self.ids, token], [*self.logprobs, logprob], self.total + logprob, self.weight + weight,
                    self.stream)  # fmt: skip


@dataclass
class Search:
    """What all searches share: one live hypothesis at first, which follows `forced` tokens before it is free."""

    special: Special
    forced: Ids
    live: list[Live] = field(default_factory=lambda: [Live([], [])])
    done: bool = False

    @property
    def position(self) -> int:
        """Tokens that are cached of every live hypothesis when it is extended next."""
        return len(self.live[0].ids)

    def last_tokens(self) -> list[int]:
        return [hypothesis.ids[-1] if hypothesis.ids else self.special.bos for hypothesis in self.live]

    def wanted(self) -> int:
        """How many of the likeliest tokens the next `advance` looks at, for each row."""
        return 1

    def advance(self, rows: Sequence[Row]) -> list[int]:
        """Take the next tokens of every live hypothesis; for each that is live now, which one it continues."""
        at = self.position
        if at < len(self.forced):
            token = self.forced[at]
            logprob = float(rows[0].all[token])
            self.live = [self.live[0].extended(token, logprob, logprob)]
            return self.after_forced()
        return self.choose(rows)

    def after_forced(self) -> list[int]:
        return [0]

    def choose(self, rows: Sequence[Row]) -> list[int]:
        raise NotImplementedError


class ScoreSearch(Search):
    """Every token is given, the end token last."""

    def __init__(self, special: Special, task: Score) -> None:
        super().__init__(special, (*task.target, special.eos))

    def after_forced(self) -> list[int]:
        self.done = self.position == len(self.forced)
        return [] if self.done else [0]

    @property
    def logprobs(self) -> tuple[float, ...]:
        return tuple(self.live[0].logprobs)


class NextTokenSearch(Search):
    """The distribution after the given tokens."""

    distribution: Array

    def __init__(self, special: Special, task: NextToken) -> None:
        super().__init__(special, task.prefix)

    def choose(self, rows: Sequence[Row]) -> list[int]:
        self.distribution, self.done = rows[0].all.copy(), True
        return []

    @property
    def logprobs(self) -> tuple[float, ...]:
        return tuple(self.live[0].logprobs)


def agreed(sequences: Sequence[Sequence[int]]) -> int:
    """The length of the longest prefix that all share."""
    first, *others = sequences
    count = len(first)
    for other in others:
        count = min(count, len(other))
        while count and other[:count] != first[:count]:
            count -= 1
    return count
