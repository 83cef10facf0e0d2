"""The base of every search, and the two whose tokens are given; those of `beam.py` and `sampling.py` choose theirs.

There is one search object per task; it sees only the candidates of its own rows, no tensors of the batch. It says which
token each live hypothesis is extended from (`last_tokens`) and how many top candidates it needs (`wanted`); `advance`
takes these and returns, for each new live hypothesis, the index of the one it continues. Penalties and temperature
change the weight by which tokens are chosen; what is reported is always the model's own log-probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from attendant.service.engine.search.constraints.constraints import Constraints
from attendant.service.engine.search.distributions import entropy_of, most_probable
from attendant.service.engine.tasks import (
    Array,
    Distribution,
    Ids,
    NextToken,
    Result,
    Score,
    Scored,
    Timing,
    TokenLogprobs,
)

MAX_GRAPH_TOP_K = 64  # most candidates that a step gives per row; a search that wants more ranks all logprobs itself

Candidate = tuple[float, int, int, float, float]  # -summed weight, parent, token, its log-probability, its weight
AgreedTokens = tuple[Ids, tuple[float, ...], tuple[TokenLogprobs, ...]]  # ids, log-probabilities, alternatives


@dataclass(frozen=True)
class SpecialIds:
    """The ids that mean something to a search."""

    pad: int
    bos: int
    eos: int
    start: Ids = ()  # decoded between bos and every target, not part of answers, e.g. a language


class Noted(NamedTuple):
    """What is recorded at a position, if the task asked for it."""

    top: TokenLogprobs  # the most probable tokens
    entropy: float | None  # of the distribution, in nats


class Row(NamedTuple):
    """Candidates for the next token of one live hypothesis."""

    ids: Sequence[int]  # the graph's top-k, most probable first
    logprobs: Sequence[float]  # theirs
    all: Array  # (V,), the log-probability of every token, if `needs_all`; valid until the next step

    def top(self, count: int) -> tuple[Sequence[int], Sequence[float]]:
        """The `count` most probable tokens and their log-probabilities; from `all` if the graph's top-k are too few."""
        if count <= len(self.ids) or len(self.ids) == len(self.all):
            return self.ids[:count], self.logprobs[:count]
        ids = most_probable(self.all, count)
        return ids.tolist(), self.all[ids].tolist()


@dataclass(slots=True)
class Live:
    """An unfinished hypothesis. `weight`, by which it is ranked, is the sum of log-probabilities after penalties."""

    ids: list[int]
    logprobs: list[float]
    total: float = 0.0
    weight: float = 0.0
    sample: int = 0  # which of several samples it is
    top_logprobs: tuple[TokenLogprobs, ...] = ()  # of each token, where the task asked for them
    entropies: tuple[float, ...] = ()  # likewise

    def extended(self, token: int, logprob: float, weight: float, noted: Noted | None = None) -> Live:
        return Live(
            [*self.ids, token],
            [*self.logprobs, logprob],
            self.total + logprob,
            self.weight + weight,
            self.sample,
            self.top_logprobs if noted is None else (*self.top_logprobs, noted.top),
            self.entropies if noted is None or noted.entropy is None else (*self.entropies, noted.entropy),
        )

    def extend(self, token: int, logprob: float) -> None:
        """`extended` in place, for a hypothesis that has only one continuation."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.total += logprob
        self.weight += logprob


@dataclass
class Search:
    """What all searches share: one live hypothesis at first, which takes the `forced` tokens before any is chosen."""

    special: SpecialIds
    forced: Ids
    top_logprobs: int = 0  # most probable tokens recorded at each position
    record: bool = False  # record the entropy at each position too
    live: list[Live] = field(default_factory=lambda: [Live([], [])])
    started: int = 0  # start tokens that are decoded
    done: bool = False

    @property
    def length(self) -> int:
        """Tokens of each live hypothesis; all have the same number."""
        return len(self.live[0].ids)

    @property
    def position(self) -> int:
        """Tokens of each live hypothesis that are cached before the next step: the position of that step's input."""
        return self.started + self.length

    def is_started(self) -> bool:
        """Whether every start token is decoded, so that the next token is the target's."""
        return self.started == len(self.special.start)

    def last_tokens(self) -> list[int]:
        first = self.special.start[self.started - 1] if self.started else self.special.bos
        return [hypothesis.ids[-1] if hypothesis.ids else first for hypothesis in self.live]

    def wanted(self) -> int:
        """How many of the most probable tokens the next `advance` looks at, for each row."""
        return max(1, self.top_logprobs)

    def needs_all(self) -> bool:
        """Whether the next `advance` looks at the log-probability of every token (`Row.all`)."""
        return True

    def advance(self, rows: Sequence[Row]) -> list[int]:
        """Extend the live hypotheses; return for each new one the index of the one it continues, [] when done."""
        if not self.is_started():
            self.started += 1
            return [0]
        at = self.length
        if at < len(self.forced):
            token = self.forced[at]
            logprob = float(rows[0].all[token])
            self.live = [self.live[0].extended(token, logprob, logprob, self.alternatives(rows[0]))]
            return self.after_forced()
        return self.choose(rows)

    def after_forced(self) -> list[int]:
        return [0]

    def choose(self, rows: Sequence[Row]) -> list[int]:
        raise NotImplementedError

    def keep(self, candidates: Sequence[Candidate]) -> list[int]:
        """Like `choose`, given the candidates of all rows already ranked, best first."""
        raise NotImplementedError

    def alternatives(self, row: Row) -> Noted | None:
        """The most probable tokens of a row, and its entropy, where the task asked for them."""
        if not self.top_logprobs and not self.record:
            return None
        top = tuple(zip(*row.top(self.top_logprobs), strict=True))
        return Noted(top, entropy_of(row.all) if self.record else None)

    def result(self, timing: Timing) -> Result:
        """The answer of a search that is done."""
        raise NotImplementedError

    def partial_result(self, timing: Timing) -> Result | None:  # noqa: ARG002
        """The best answer so far, for a search that is cut short; None if there is nothing to answer."""
        return None

    def has_token(self) -> bool:
        """Whether it has chosen its first token."""
        return False

    def agreed_length(self) -> int:
        """How many tokens can be emitted: no later step takes them back."""
        return 0

    def agreed_tokens(self, start: int, stop: int) -> AgreedTokens:
        """Agreed tokens from `start` to `stop`, with their log-probabilities and alternatives."""
        raise NotImplementedError


class ScoreSearch(Search):
    """Every token is given, the end token last."""

    def __init__(self, special: SpecialIds, task: Score) -> None:
        super().__init__(special, (*task.target, special.eos), task.top_logprobs, task.record)

    def after_forced(self) -> list[int]:
        self.done = self.length == len(self.forced)
        return [] if self.done else [0]

    def result(self, timing: Timing) -> Scored:
        found = self.live[0]
        return Scored(tuple(found.logprobs), timing, found.top_logprobs, found.entropies)


class NextTokenSearch(Search):
    """The distribution after the given tokens."""

    def __init__(self, special: SpecialIds, task: NextToken) -> None:
        super().__init__(special, task.prefix)
        self._constraints = task.constraints
        self._distribution: Array = np.empty(0)

    def choose(self, rows: Sequence[Row]) -> list[int]:
        self._distribution, self.done = rows[0].all.copy(), True
        if self._constraints is not None:
            self._forbid(self._constraints, self.live[0].ids)
        return []

    def _forbid(self, constraints: Constraints, ids: Sequence[int]) -> None:
        """Give the tokens that may not come the probability 0."""
        if constraints.forbidden is not None:
            self._distribution[[*constraints.forbidden.next_tokens(ids)]] = -np.inf
        if constraints.choices is not None:
            others = np.ones(len(self._distribution), bool)
            others[constraints.choices.next_tokens(ids, self.special.eos)] = False
            self._distribution[others] = -np.inf

    def result(self, timing: Timing) -> Distribution:
        return Distribution(self._distribution, tuple(self.live[0].logprobs), timing)


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of the longest prefix that both share, by bisection: each token is compared about once."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
