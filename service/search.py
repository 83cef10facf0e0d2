"""The searches: pure over the candidates that a step hands them, one object for each task, no tensors of a batch.

A search has live hypotheses. It says which token each is to be extended from, and how many of the likeliest next tokens
it needs; `advance` takes those and answers which live hypothesis each new one continues. docs/architecture.md defines
the beam search; with one place it is greedy. What is chosen may be weighed by penalties and temperature; what is
reported is always the model's own log-probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from service.tasks import Array, Generate, Hypothesis, Ids, NextToken, Options, Score, Task

BANNED = -math.inf


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


class GenerateSearch(Search):
    """Beam search, of which greedy is the one with one place."""

    def __init__(self, special: Special, task: Generate) -> None:
        super().__init__(special, task.prefix)
        self.options: Options = task.options
        self.finished: list[tuple[float, Hypothesis]] = []  # (what it is ranked by, hypothesis), best first

    @property
    def places(self) -> int:
        return self.options.beam_size - len(self.finished)

    def wanted(self) -> int:
        return self.places + self._unavailable()

    def _unavailable(self) -> int:
        """The most tokens that a row's likeliest may hold which cannot be chosen as they are."""
        options, length = self.options, self.position
        count = 2 + (length < options.min_length)  # padding and start, and the end token while it is too early
        if options.repetition_penalty != 1.0 or options.no_repeat_ngram_size:
            count += length
        return count

    def after_forced(self) -> list[int]:
        if self.position < self.options.max_length:
            return [0]
        self._finish(self.live[0], "length")
        return self._end()

    def choose(self, rows: Sequence[Row]) -> list[int]:
        wanted, length, places = self.wanted(), self.position + 1, self.places
        candidates: list[tuple[float, int, int, float, float]] = []  # -weight, parent, token, log-probability, weight
        for parent, (hypothesis, row) in enumerate(zip(self.live, rows, strict=True)):
            before = hypothesis.weight
            for token, logprob, weight in self.allowed(hypothesis, row, wanted)[:places]:
                candidates.append((-(before + weight), parent, token, logprob, weight))
        if not candidates:  # every token is forbidden
            for hypothesis in self.live:
                self._finish(hypothesis, "length")
            return self._end()
        candidates.sort(key=_by_weight)
        chosen, parents = [], []
        for _, parent, token, logprob, weight in candidates[:places]:
            extended = self.live[parent].extended(token, logprob, weight)
            if token == self.special.eos:
                self._finish(extended, "stop")
            elif length == self.options.max_length:
                self._finish(extended, "length")
            else:
                chosen.append(extended)
                parents.append(parent)
        self.live = chosen
        return self._end() if not chosen or self._decided() else parents

    def allowed(self, hypothesis: Live, row: Row, wanted: int) -> list[tuple[int, float, float]]:
        """(token, log-probability, weight) of the likeliest tokens that may come next, best first."""
        options = self.options
        special, too_early = self.special, len(hypothesis.ids) < options.min_length
        if options.repetition_penalty == 1.0 and not options.no_repeat_ngram_size:
            never = (special.pad, special.bos, special.eos) if too_early else (special.pad, special.bos)
            likeliest = zip(row.ids[:wanted], row.logprobs, strict=False)
            return [(token, logprob, logprob) for token, logprob in likeliest if token not in never]
        weights = penalised(hypothesis.ids, row, wanted, options)
        return sorted(
            (
                (token, logprob, weight)
                for token, logprob, weight in weights
                if token not in (special.pad, special.bos)
                and not (too_early and token == special.eos)
                and weight != BANNED
            ),
            key=lambda entry: (-entry[2], entry[0]),
        )

    def _finish(self, hypothesis: Live, reason: str) -> None:
        penalty = self.options.length_penalty
        length = max(len(hypothesis.logprobs), 1)
        ids = hypothesis.ids[:-1] if reason == "stop" else hypothesis.ids
        found = Hypothesis(tuple(ids), tuple(hypothesis.logprobs), hypothesis.total / length**penalty, reason)
        self.finished.append((hypothesis.weight / length**penalty, found))
        self.finished.sort(key=lambda entry: -entry[0])

    def _decided(self) -> bool:
        """Whether no live hypothesis can still be among those asked for: a sum only falls with its length."""
        options = self.options
        if len(self.finished) < options.num_hypotheses:
            return False
        penalty = options.length_penalty
        longest = options.max_length if penalty > 0 else self.position + 1
        best_possible = max(hypothesis.weight for hypothesis in self.live) / longest**penalty
        return bool(self.finished[options.num_hypotheses - 1][0] >= best_possible)

    def _end(self) -> list[int]:
        self.done, self.live = True, []
        return []

    def certain(self) -> Live | None:
        """The tokens that the final answer is sure to begin with."""
        best = self._best_finished()
        hypotheses = [*self.live, *([] if best is None else [best])]
        if not hypotheses:
            return None
        count = agreed([hypothesis.ids for hypothesis in hypotheses])
        return Live(hypotheses[0].ids[:count], hypotheses[0].logprobs[:count])

    def _best_finished(self) -> Live | None:
        if not self.finished:
            return None
        best = self.best()[0]
        return Live(list(best.ids), list(best.logprobs))

    def best(self, cut_short: bool = False) -> tuple[Hypothesis, ...]:
        """The hypotheses asked for, best first; with those that are not finished, where time is up."""
        found = list(self.finished)
        if cut_short:
            penalty = self.options.length_penalty
            for live in sorted(self.live, key=lambda hypothesis: -hypothesis.weight):
                if live.ids:
                    length = len(live.logprobs) ** penalty
                    unfinished = Hypothesis(tuple(live.ids), tuple(live.logprobs), live.total / length, "deadline")
                    found.append((live.weight / length, unfinished))
        ranked = sorted(found, key=lambda entry: (entry[1].finish_reason == "deadline", -entry[0]))
        return tuple(hypothesis for _, hypothesis in ranked[: self.options.num_hypotheses])


class SampleSearch(GenerateSearch):
    """Independent samples, each with random numbers of its own: a function of the seed, the sample and the step."""

    @property
    def places(self) -> int:
        return self.options.num_hypotheses - len(self.finished)

    def wanted(self) -> int:
        return 1 if self.options.top_k is None else self.options.top_k + self._unavailable()

    def choose(self, rows: Sequence[Row]) -> list[int]:
        if self.position == len(self.forced):  # one hypothesis becomes as many as there are samples
            first = self.live[0]
            pairs = [
                (0, Live(first.ids, first.logprobs, first.total, first.weight, stream), rows[0])
                for stream in range(self.options.num_hypotheses)
            ]
        else:
            pairs = [(i, live, row) for i, (live, row) in enumerate(zip(self.live, rows, strict=True))]
        chosen, parents = [], []
        for parent, live, row in pairs:
            token = self._draw(live, row)
            if token is None:  # every token is forbidden
                self._finish(live, "length")
                continue
            logprob = float(row.all[token])
            extended = live.extended(token, logprob, logprob)
            if token == self.special.eos:
                self._finish(extended, "stop")
            elif len(extended.ids) == self.options.max_length:
                self._finish(extended, "length")
            else:
                chosen.append(extended)
                parents.append(parent)
        self.live = chosen
        return parents if chosen else self._end()

    def _draw(self, live: Live, row: Row) -> int | None:
        options = self.options
        assert options.temperature is not None
        if options.top_k is None:
            ids, weights = self._whole_vocabulary(live, row)
        else:
            few = self.allowed(live, row, self.wanted())[: options.top_k]
            ids, weights = np.array([entry[0] for entry in few]), np.array([entry[2] for entry in few])
        if not len(ids):
            return None
        scaled = weights / options.temperature
        shares = np.exp(scaled - scaled.max())
        if options.top_p is not None:
            ids, shares = nucleus(ids, shares, options.top_p)
        cumulative = np.cumsum(shares)
        at = uniform(options.seed, live.stream, len(live.ids)) * cumulative[-1]
        return int(ids[min(int(np.searchsorted(cumulative, at, side="right")), len(ids) - 1)])

    def _whole_vocabulary(self, live: Live, row: Row) -> tuple[Array, Array]:
        options, weights = self.options, row.all.astype(np.float64)
        seen = np.array(sorted(set(live.ids)), dtype=np.int64)
        weights[seen] *= options.repetition_penalty
        forbidden = [self.special.pad, self.special.bos, *repeating(live.ids, options.no_repeat_ngram_size)]
        if len(live.ids) < options.min_length:
            forbidden.append(self.special.eos)
        weights[forbidden] = BANNED
        ids = np.flatnonzero(weights > BANNED)
        return ids, weights[ids]


def penalised(ids: list[int], row: Row, wanted: int, options: Options) -> list[tuple[int, float, float]]:
    """(token, log-probability, weight) with repeated tokens made less likely and repeated n-grams forbidden.

    A penalty under 1 makes repeated tokens likelier, so they join even where they are not among the likeliest.
    """
    seen, banned = set(ids), repeating(ids, options.no_repeat_ngram_size)
    pairs = dict(zip(row.ids[:wanted], row.logprobs, strict=False))
    if options.repetition_penalty < 1.0:
        pairs |= {token: float(row.all[token]) for token in seen}
    return [
        (
            token,
            logprob,
            BANNED if token in banned else logprob * options.repetition_penalty if token in seen else logprob,
        )
        for token, logprob in pairs.items()
    ]


def repeating(ids: list[int], size: int) -> set[int]:
    """The tokens that would complete an n-gram of this size that is there already."""
    if size < 1 or len(ids) < size:
        return set()
    tail = ids[len(ids) - size + 1 :]
    return {ids[i + size - 1] for i in range(len(ids) - size + 1) if ids[i : i + size - 1] == tail}


def nucleus(ids: Array, shares: Array, top_p: float) -> tuple[Array, Array]:
    """The fewest likeliest tokens that together have a share of at least top_p, likeliest first."""
    order = np.argsort(-shares, kind="stable")
    kept = order[: int(np.searchsorted(np.cumsum(shares[order]), top_p * shares.sum(), side="left")) + 1]
    return ids[kept], shares[kept]


def uniform(seed: int, stream: int, counter: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments (SplitMix64 over them)."""
    state = 0
    for part in (seed, stream, counter):
        state = _mix(state ^ _mix(part & _MASK))
    return (state >> 11) / 2**53


_MASK = 2**64 - 1


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def agreed(sequences: Sequence[Sequence[int]]) -> int:
    """The length of the longest prefix that all share."""
    first, *others = sequences
    count = len(first)
    for other in others:
        count = min(count, len(other))
        while count and other[:count] != first[:count]:
            count -= 1
    return count


# Best first; of equals, as they were before: the better parent, then the likelier token.
_by_weight = itemgetter(0, 1)


def make_search(special: Special, task: Task) -> GenerateSearch | ScoreSearch | NextTokenSearch:
    if isinstance(task, Generate):
        return SampleSearch(special, task) if task.options.samples else GenerateSearch(special, task)
    return ScoreSearch(special, task) if isinstance(task, Score) else NextTokenSearch(special, task)
