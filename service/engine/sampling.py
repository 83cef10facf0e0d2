"""Samples, each with random numbers of its own: a function of the seed, the sample and the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.engine.beam import BANNED, GenerateSearch, repeating
from service.engine.search import Live, Row
from service.engine.tasks import Array


class SampleSearch(GenerateSearch):
    """As many independent samples as are asked for."""

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
