"""Beam search, defined in docs/architecture.md; with one place it is greedy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter

from service.engine.search import Live, Row, Search, Special, agreed
from service.engine.tasks import Generate, Hypothesis, Options

BANNED = -math.inf

# Best first; of equals, as they were before: the better parent, then the likelier token.
_by_weight = itemgetter(0, 1)


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
