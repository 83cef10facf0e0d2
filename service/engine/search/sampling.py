"""Sampling. A random number is a function of the seed, the sample's index and its length, and of nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attendant.service.engine.search.beam import BANNED, GenerateSearch
from attendant.service.engine.search.distributions import most_probable
from attendant.service.engine.search.search import Live, Row
from attendant.service.engine.tasks import Array, Hypothesis


class SampleSearch(GenerateSearch):
    """num_hypotheses independent samples, answered in the order of their indices."""

    def wanted(self) -> int:
        top_k = self.options.top_k
        return max(1 if top_k is None else self._needed(top_k), self.top_logprobs)

    def needs_all(self) -> bool:
        return True

    def choose(self, rows: Sequence[Row]) -> list[int]:
        if self.length == len(self.forced):  # one hypothesis becomes as many as there are samples
            first = self.live[0]
            pairs = [(0, replace(first, sample=sample), rows[0]) for sample in range(self.options.num_hypotheses)]
        else:
            pairs = [(i, live, row) for i, (live, row) in enumerate(zip(self.live, rows, strict=True))]
        chosen, parents, must_end = [], [], self._must_end()
        for parent, live, row in pairs:
            token = self.special.eos if must_end else self._draw(live, row)
            if token is None:  # every token is forbidden
                self._end(live, "length")
                continue
            logprob = float(row.all[token])
            extended = live.extended(token, logprob, logprob, self.alternatives(row))
            if token == self.special.eos and not must_end:
                self._end(extended, "stop")
            elif len(extended.ids) == self.options.max_length:
                self._end(extended, "length")
            else:
                chosen.append(extended)
                parents.append(parent)
        self.live = chosen
        return parents if chosen else self._stop()

    def _rank(self, live: Live) -> float:
        return live.sample

    def best(self, cut_short: bool = False) -> tuple[Hypothesis, ...]:
        """The samples in the order of their indices; if cut short, also those that have not ended."""
        found = list(self.ended)
        if cut_short:
            found += [(self._rank(live), self.hypothesis(live, "deadline")) for live in self._answerable()]
        return tuple(hypothesis for _, hypothesis in sorted(found, key=lambda entry: entry[0]))

    def agreed_length(self) -> int:
        """The first sample is answered first, so each of its tokens can be emitted at once."""
        return len(self._first().ids)

    def _first(self) -> Live | Hypothesis:
        return self.live[0] if self.live and self.live[0].sample == 0 else self.ended[0][1]

    def _draw(self, live: Live, row: Row) -> int | None:
        """Draw a token by softmax(weights / temperature), within top_k and top_p; None if all are forbidden."""
        options = self.options
        assert options.temperature is not None
        ids, weights = self._candidates(live, row)
        if not len(ids):
            return None
        scaled = weights / options.temperature
        shares = np.exp(scaled - scaled.max())
        if options.top_p is not None:
            ids, shares = nucleus(ids, shares, options.top_p)
        cumulative = np.cumsum(shares)
        at = uniform(options.seed, live.sample, len(live.ids)) * cumulative[-1]
        return int(ids[min(int(np.searchsorted(cumulative, at, side="right")), len(ids) - 1)])

    def _candidates(self, live: Live, row: Row) -> tuple[Array, Array]:
        """The ids to draw from and their weights; with top_k most probable first.

        A top_k beyond the graph's candidates is taken from the row's whole distribution: no other row pays for it.
        """
        top_k = self.options.top_k
        if top_k is None:
            return self._allowed_tokens(live, row)
        needed = self._needed(top_k)
        if needed <= len(row.ids):
            few = self._allowed(live, row, needed)[:top_k]
            return np.array([entry[0] for entry in few]), np.array([entry[2] for entry in few])
        ids, weights = self._allowed_tokens(live, row)
        kept = most_probable(weights, top_k)
        return ids[kept], weights[kept]

    def _allowed_tokens(self, live: Live, row: Row) -> tuple[Array, Array]:
        """The ids that may come next, in ascending order, and their weights."""
        options, weights = self.options, row.all.astype(np.float64)
        seen = np.array(sorted(set(live.ids)), dtype=np.int64)
        weights[seen] *= options.repetition_penalty
        if self._choices is not None:
            pairs = self._choose_among(live, row)
            allowed = np.array(list(pairs), np.int64)
            return allowed, np.array([self.weight(live, token, logprob) for token, logprob in pairs.items()])
        forbidden = [self.special.pad, self.special.bos, *self.banned(live.ids)]
        if len(live.ids) < options.min_length:
            forbidden.append(self.special.eos)
        weights[forbidden] = BANNED
        ids = np.flatnonzero(weights != BANNED)  # NaN stays, and its request fails
        return ids, weights[ids]


def nucleus(ids: Array, shares: Array, top_p: float) -> tuple[Array, Array]:
    """The fewest most probable tokens that together have a share of at least top_p, most probable first."""
    order = np.argsort(-shares, kind="stable")
    kept = order[: int(np.searchsorted(np.cumsum(shares[order]), top_p * shares.sum(), side="left")) + 1]
    return ids[kept], shares[kept]


def uniform(seed: int, sample: int, counter: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments (SplitMix64 over them)."""
    state = 0
    for part in (seed, sample, counter):
        state = _mix(state ^ _mix(part & _MASK))
    return (state >> 11) / 2**53


_MASK = 2**64 - 1


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
