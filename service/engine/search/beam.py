"""Beam search, defined in docs/architecture.md; with a beam of one it is greedy.

A step looks at 2 x beam_size candidates. Those that end among the first beam_size are finished; the best beam_size that
do not end are live. Finished hypotheses hold no row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from attendant.service.engine.search.search import (
    MAX_GRAPH_TOP_K,
    AgreedTokens,
    Candidate,
    Live,
    Noted,
    Row,
    Search,
    SpecialIds,
)
from attendant.service.engine.search.tree import Tree
from attendant.service.engine.tasks import Generate, Generated, Hypothesis, Options, Timing

BANNED = -math.inf
LOWEST_LOGPROB = float(np.finfo(np.float32).min)  # of a choice's token whose probability is 0

# Sort key, best first. Sorting is stable, so ties keep their order: the better parent, then the more probable token;
# of finished hypotheses, the earlier.
_best_first = itemgetter(0)


def is_unpenalised(task: Generate) -> bool:
    """Whether tokens are chosen by the model's log-probabilities alone, and nothing is recorded of them."""
    options = task.options
    return not (
        options.samples
        or options.repetition_penalty != 1.0
        or options.no_repeat_ngram_size
        or task.constraints is not None
        or task.top_logprobs
        or task.record
    )


def per_row(options: Options) -> int:
    """Candidates of a row that can matter: those that stay live, and the end token. Greedy search needs one."""
    return options.beam_size + 1 if options.beam_size > 1 else 1


def divisor(special: SpecialIds, options: Options, length: int) -> float:
    """A score is a sum over `length` tokens, the end token included, divided by this; start tokens count too."""
    return float(max(len(special.start) + length, 1) ** options.length_penalty)


class GenerateSearch(Search):
    """Beam search: at most beam_size live hypotheses, best first, and the beam_size best that have finished."""

    def __init__(self, special: SpecialIds, task: Generate) -> None:
        super().__init__(special, task.prefix, task.top_logprobs, task.record)
        self.options: Options = task.options
        self.ended: list[tuple[float, Hypothesis]] = []  # (rank, hypothesis), best first
        self._agreed = 0  # length of the prefix shared by all hypotheses that can still be the best answer
        self._tree = Tree() if task.record and not task.options.samples else None
        constraints = task.constraints
        self._forbidden = None if constraints is None else constraints.forbidden
        self._choices = None if constraints is None else constraints.choices
        # Whether a token's weight is its log-probability, and no token is forbidden that was allowed before.
        self._by_logprobs = (
            self.options.repetition_penalty == 1.0
            and not self.options.no_repeat_ngram_size
            and self._forbidden is None
            and self._choices is None
        )
        self._unpenalised = is_unpenalised(task)
        self._per_row = per_row(self.options)

    def wanted(self) -> int:
        found = self._forbidden
        phrases = 0 if found is None else max(self._phrases_at(live.ids) for live in self.live)
        return max(self._needed(self._per_row) + phrases, self.top_logprobs)

    def needs_all(self) -> bool:
        return not self._looks_at_top() or self.wanted() > MAX_GRAPH_TOP_K

    def _looks_at_top(self) -> bool:
        """Whether the next token is among the most probable ones, as many as `wanted`, and no other number is read."""
        free = self.is_started() and self.length >= len(self.forced) and not self._must_end()
        return free and self._choices is None and self.options.repetition_penalty >= 1.0 and not self.record

    def _needed(self, count: int) -> int:
        """How many of a row's most probable tokens to look at, so that at least `count` of them are allowed."""
        options, length = self.options, self.length
        count += 2 + (length < options.min_length)  # padding, start, and the end token while it is too early
        if options.repetition_penalty != 1.0 or options.no_repeat_ngram_size:
            count += length
        return count if self._forbidden is None else count + len(self._forbidden.always)

    def is_plain(self) -> bool:
        """Whether the next token is chosen by the model's log-probabilities alone, not forced, and not recorded."""
        free = self.is_started() and self.length >= len(self.forced)
        return self._unpenalised and free and not self._must_end()

    def too_early(self) -> bool:
        """Whether the end token may not come yet."""
        return self.length < self.options.min_length

    def after_forced(self) -> list[int]:
        if self.length < self.options.max_length:
            return [0]
        self._end(self.live[0], "length")
        return self._stop()

    def choose(self, rows: Sequence[Row]) -> list[int]:
        per_row, needed = self._per_row, self._needed(self._per_row)
        candidates: list[Candidate] = []
        for parent, (hypothesis, row) in enumerate(zip(self.live, rows, strict=True)):
            before = hypothesis.weight
            for token, logprob, weight in self._allowed(hypothesis, row, needed)[:per_row]:
                candidates.append((-(before + weight), parent, token, logprob, weight))
        if not candidates:  # every token is forbidden
            for hypothesis in self.live:
                self._end(hypothesis, "length")
            if self._tree is not None:
                self._tree.end_live()
            return self._stop()
        candidates.sort(key=_best_first)
        return self._keep(candidates, self._alternatives_of_all(rows))

    def keep(self, candidates: Sequence[Candidate]) -> list[int]:
        if self.options.beam_size > 1:
            return self._keep(candidates, [None] * len(self.live))
        _, _, token, logprob, _ = candidates[0]
        live = self.live[0]
        live.extend(token, logprob)
        if token == self.special.eos:
            self._end(live, "stop")
        elif len(live.ids) == self.options.max_length:
            self._end(live, "length")
        else:
            return [0]
        return self._stop()

    def _keep(self, candidates: Sequence[Candidate], tops: Sequence[Noted | None]) -> list[int]:
        """Divide candidates, given best first, into finished, live and pruned; returns the parents of the live ones."""
        beam_size, at_limit = self.options.beam_size, self.length + 1 == self.options.max_length
        forced = self._must_end()
        before, self.live = self.live, []
        parents: list[int] = []
        states: dict[int, str] = {}  # of candidates that are not pruned
        for number, (_, parent, token, logprob, weight) in enumerate(candidates[: (2 - at_limit) * beam_size]):
            if len(parents) == beam_size:
                break
            ends = token == self.special.eos
            if ends and number >= beam_size:
                continue
            extended = before[parent].extended(token, logprob, weight, tops[parent])
            if ends or at_limit:
                self._end(extended, "length" if at_limit and (forced or not ends) else "stop")
                states[number] = "finished"
            else:
                self.live.append(extended)
                parents.append(parent)
                states[number] = "kept"
        if self._tree is not None:
            self._tree.add(candidates[: 2 * beam_size], states, self._divisor(len(before[0].logprobs) + 1))
        del self.ended[beam_size:]
        return self._stop() if not parents or self._decided() else parents

    def _alternatives_of_all(self, rows: Sequence[Row]) -> Sequence[Noted | None]:
        return [self.alternatives(row) for row in rows] if self.top_logprobs or self.record else [None] * len(rows)

    def _allowed(self, hypothesis: Live, row: Row, needed: int) -> list[tuple[int, float, float]]:
        """(token, log-probability, weight) of the most probable tokens that may come next, best first."""
        if self._must_end():
            return [(self.special.eos, float(row.all[self.special.eos]), 0.0)]
        never = {self.special.pad, self.special.bos}
        if len(hypothesis.ids) < self.options.min_length:
            never.add(self.special.eos)
        if self._by_logprobs:
            likely = zip(*row.top(needed), strict=True)
            return [(token, logprob, logprob) for token, logprob in likely if token not in never]
        if self._choices is not None:
            pairs = self._choose_among(hypothesis, row)
        else:
            never |= self.banned(hypothesis.ids)
            # `needed` counts all that may be forbidden but phrases of several tokens. More would be costly: beyond the
            # graph's candidates the whole vocabulary is ranked.
            pairs = self._likely(hypothesis, row, needed + self._phrases_at(hypothesis.ids))
        return sorted(
            (
                (token, logprob, weight)
                for token, logprob in pairs.items()
                if token not in never and (weight := self.weight(hypothesis, token, logprob)) != BANNED
            ),
            key=lambda entry: (-entry[2], entry[0]),
        )

    def banned(self, ids: Sequence[int]) -> set[int]:
        """The tokens that would repeat an n-gram, or complete a forbidden phrase."""
        found = repeating(ids, self.options.no_repeat_ngram_size)
        return found if self._forbidden is None else found | self._forbidden.next_tokens(ids)

    def _phrases_at(self, ids: Sequence[int]) -> int:
        """Tokens that would complete a forbidden phrase of several tokens."""
        found = self._forbidden
        return 0 if found is None else len(found.next_tokens(ids)) - len(found.always)

    def weight(self, hypothesis: Live, token: int, logprob: float) -> float:
        """The log-probability after the penalty for a token that came before."""
        repeats = self.options.repetition_penalty != 1.0 and token in hypothesis.ids
        return logprob * self.options.repetition_penalty if repeats else logprob

    def _likely(self, hypothesis: Live, row: Row, count: int) -> dict[int, float]:
        """The log-probabilities of the most probable tokens.

        A penalty under 1 makes repeated tokens more probable, so they are candidates even outside of the top-k.
        """
        pairs = dict(zip(*row.top(count), strict=True))
        if self.options.repetition_penalty < 1.0:
            pairs |= {token: float(row.all[token]) for token in set(hypothesis.ids)}
        return pairs

    def _choose_among(self, hypothesis: Live, row: Row) -> dict[int, float]:
        """The log-probabilities of the tokens that continue a choice; the lowest number in place of minus infinity."""
        assert self._choices is not None
        tokens = self._choices.next_tokens(hypothesis.ids, self.special.eos)
        return {token: max(float(row.all[token]), LOWEST_LOGPROB) for token in tokens}

    def _must_end(self) -> bool:
        """Whether the only token that may come next is the end token."""
        return self.options.forced_end and self.length + 1 == self.options.max_length

    def _end(self, live: Live, reason: str) -> None:
        """Add a hypothesis to the finished ones."""
        self.ended.append((self._rank(live), self.hypothesis(live, reason)))
        self.ended.sort(key=_best_first)

    def _rank(self, live: Live) -> float:
        """What answers are sorted by, smallest first."""
        return -live.weight / self._divisor(len(live.logprobs))

    def _divisor(self, length: int) -> float:
        return divisor(self.special, self.options, length)

    def hypothesis(self, live: Live, reason: str) -> Hypothesis:
        ids = live.ids[:-1] if live.ids and live.ids[-1] == self.special.eos else live.ids
        score = live.total / self._divisor(len(live.logprobs))
        return Hypothesis(tuple(ids), tuple(live.logprobs), score, reason, live.top_logprobs, live.entropies)

    def _decided(self) -> bool:
        """Whether the search is done although hypotheses are live.

        It is if no live one can still be among the num_hypotheses best; or, once beam_size have finished, if
        early_stopping is True, or if it is False and no live one scores better now than the worst of those.
        """
        options, best = self.options, self.live[0].weight
        if len(self.ended) < options.num_hypotheses:
            return False
        if self._best_possible(best) <= -self.ended[options.num_hypotheses - 1][0]:
            return True
        if len(self.ended) < options.beam_size or options.early_stopping == "never":
            return False
        if options.early_stopping:
            return True
        nearest = self._best_candidate()
        return nearest is not None and nearest / self._divisor(self.length) <= -self.ended[-1][0]

    def _best_candidate(self) -> float | None:
        """The weight of the best live hypothesis that may end as it is; None if there is none."""
        return self.live[0].weight

    def _best_possible(self, weight: float) -> float:
        """The best score that a live one can still get: its sum only falls, so the present sum at the best length."""
        return weight / self._divisor(self.options.max_length if self.options.length_penalty > 0 else self.length)

    def _stop(self) -> list[int]:
        self.done, self.live = True, []
        return []

    def has_token(self) -> bool:
        return self.done or self.length > len(self.forced)

    def agreed_length(self) -> int:
        """Length of the prefix that the best finished hypothesis and every live one that can still beat it share.

        It never falls: the best answer will be one of these, or continue one.
        """
        if self.ended:
            rank, best = self.ended[0]
            sequences: list[Sequence[int]] = [best.ids]
            sequences += [live.ids for live in self.live if self._best_possible(live.weight) > -rank]
        else:
            sequences = [live.ids for live in self.live]
        first, shortest = sequences[0], min(map(len, sequences))
        while self._agreed < shortest and all(ids[self._agreed] == first[self._agreed] for ids in sequences):
            self._agreed += 1
        return self._agreed

    def agreed_tokens(self, start: int, stop: int) -> AgreedTokens:
        first = self._first()
        new = slice(start, stop)
        return tuple(first.ids[new]), tuple(first.logprobs[new]), first.top_logprobs[new]

    def _first(self) -> Live | Hypothesis:
        """A hypothesis that starts with the agreed tokens."""
        return self.ended[0][1] if self.ended else self.live[0]

    def result(self, timing: Timing) -> Generated:
        best = self.best()
        tree = None if self._tree is None else self._tree.steps(len(self.forced), self.special.eos, best)
        return Generated(best, timing, tree)

    def partial_result(self, timing: Timing) -> Generated | None:
        best = self.best(cut_short=True)
        return Generated(best, timing, cut_short=True) if best else None

    def best(self, cut_short: bool = False) -> tuple[Hypothesis, ...]:
        """The num_hypotheses best; if cut short, the finished ones, then live ones with a token beyond the prefix."""
        found = [hypothesis for _, hypothesis in self.ended]
        if cut_short:
            found += [self.hypothesis(live, "deadline") for live in self._answerable()]
        return tuple(found[: self.options.num_hypotheses])

    def _answerable(self) -> list[Live]:
        """The live hypotheses with a token beyond the prefix, best first."""
        return sorted((live for live in self.live if len(live.ids) > len(self.forced)), key=self._rank)


def repeating(ids: Sequence[int], size: int) -> set[int]:
    """The tokens that would complete an n-gram of this size that is there already."""
    if size < 1 or len(ids) < size:
        return set()
    tail = ids[len(ids) - size + 1 :]
    return {ids[i + size - 1] for i in range(len(ids) - size + 1) if ids[i : i + size - 1] == tail}
