"""Beam search whose answers have all terms: dynamic beam allocation (Post and Vilar, 2018).

Beside its most probable tokens, every hypothesis is extended by those that begin or continue a term. Hypotheses are
compared with those that have as many terms: the live ones are divided evenly over the groups that have candidates.
Those inside of a term are compared as if the rest of it cost as much for each token as what has come. By their sums
alone a term of several improbable tokens would be put off to the end: what begins it anew has paid for one of them, and
is more probable than what goes on. Only a hypothesis with all terms may end, and one is dropped that has no room left
for those that it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from attendant.service.engine.search.beam import BANNED, GenerateSearch
from attendant.service.engine.search.constraints.terms import State, States, met_terms
from attendant.service.engine.search.search import Candidate, Live, Row, SpecialIds
from attendant.service.engine.tasks import Generate, Hypothesis

Extension = tuple[Candidate, State, float]  # the state that it leads to, and its weight before the term that is begun


class GroupedBeamSearch(GenerateSearch):
    def __init__(self, special: SpecialIds, task: Generate) -> None:
        super().__init__(special, task)
        assert task.constraints is not None
        self._terms, self._edges = task.constraints.terms, task.constraints.edges
        self._machine = States(self._terms, self._edges)
        self._states: list[State] = []  # of each live hypothesis; none before the prefix is decoded
        self._before: list[float] = []  # of each, its weight before the term that it has begun
        self._per_row += 1  # the end token, which may not come before all terms have

    def needs_all(self) -> bool:
        """Terms begin with tokens that may be far from the most probable."""
        return not self._states or any(state.next_tokens for state in self._states) or super().needs_all()

    def choose(self, rows: Sequence[Row]) -> list[int]:
        states = self._states or [self._machine.read(self.live[0].ids)]
        extensions: list[Extension] = []
        before = self._before or [self.live[0].weight]
        for parent, (live, row, state, weight) in enumerate(zip(self.live, rows, states, before, strict=True)):
            extensions += self._extensions(parent, live, row, state, weight)
        if not extensions:
            return self._give_up()
        extensions.sort(key=lambda extension: extension[0][0])
        return self._divide(extensions, rows)

    def _extensions(self, parent: int, live: Live, row: Row, state: State, before: float) -> list[Extension]:
        """A hypothesis by its most probable tokens, and by those that bring a term nearer."""
        entries = self._allowed(live, row, self._needed(self._per_row))
        likely = [entry for entry in entries if entry[0] != self.special.eos or not state.missing][: self._per_row]
        if state.next_tokens and not self._must_end():
            known = {token for token, _, _ in likely}
            banned = set() if self._by_logprobs else self.banned(live.ids)
            for token in state.next_tokens:
                if token in known or token in banned:
                    continue
                logprob = float(row.all[token])
                weight = self.weight(live, token, logprob)
                if weight != BANNED:
                    likely.append((token, logprob, weight))
        room = self.options.max_length - self.length - 1 - self.options.forced_end
        found = []
        for token, logprob, weight in likely:
            then = self._machine.after(state, token)
            if not then.missing or then.missing <= room:
                origin = before if 1 < then.come == state.come + 1 else live.weight
                found.append(((-(live.weight + weight), parent, token, logprob, weight), then, origin))
        return found

    def _divide(self, extensions: Sequence[Extension], rows: Sequence[Row]) -> list[int]:
        """Divide extensions, given best first, into finished, live and pruned; returns the parents of the live ones."""
        beam_size, at_limit = self.options.beam_size, self.length + 1 == self.options.max_length
        forced, tops = self._must_end(), self._alternatives_of_all(rows)
        groups: dict[int, list[tuple[float, int]]] = {}  # of extensions that go on: what they are compared by, place
        states: dict[int, str] = {}
        whole = 0  # extensions seen that have all terms
        before = self.live
        for place, ((key, parent, token, logprob, weight), state, origin) in enumerate(extensions):
            whole += not state.missing
            ends = token == self.special.eos
            if not ends and not at_limit:
                expected = (key + origin) * state.whole / state.come - origin if state.come else key
                groups.setdefault(state.group, []).append((expected, place))
            elif not state.missing and whole <= beam_size:
                extended = before[parent].extended(token, logprob, weight, tops[parent])
                self._end(extended, "length" if at_limit and (forced or not ends) else "stop")
                states[place] = "finished"
        self.live, self._states, self._before, parents = [], [], [], []
        best_first = {group: [place for _, place in sorted(found)] for group, found in groups.items()}
        for place in allocate(best_first, beam_size):
            (_, parent, token, logprob, weight), state, origin = extensions[place]
            self.live.append(before[parent].extended(token, logprob, weight, tops[parent]))
            self._states.append(state)
            self._before.append(origin)
            parents.append(parent)
            states[place] = "kept"
        self._note(extensions, states, len(before[0].logprobs) + 1)
        del self.ended[beam_size:]
        return self._stop() if not parents or self._decided() else parents

    def _note(self, extensions: Sequence[Extension], states: Mapping[int, str], length: int) -> None:
        """Record in the tree the extensions that were not pruned, and the best of those that were."""
        if self._tree is None:
            return
        shown = sorted({*range(min(len(extensions), 2 * self.options.beam_size)), *states})
        numbered = {number: states[place] for number, place in enumerate(shown) if place in states}
        self._tree.add([extensions[place][0] for place in shown], numbered, self._divisor(length))

    def _give_up(self) -> list[int]:
        """No hypothesis can go on: forbidden phrases or n-grams are in the way of the terms."""
        if not self.ended:
            for live in self.live:
                self._end(live, "length")
            self.ended.sort(key=lambda entry: _missing(entry[1]))
            if self._tree is not None:
                self._tree.end_live()
        return self._stop()

    def _best_candidate(self) -> float | None:
        pairs = zip(self.live, self._states, strict=True)
        return max((live.weight for live, state in pairs if not state.missing), default=None)

    def _answerable(self) -> list[Live]:
        """An answer that is cut short has as many terms as it could."""
        return sorted(super()._answerable(), key=lambda live: _missing(self.hypothesis(live, "deadline")))

    def hypothesis(self, live: Live, reason: str) -> Hypothesis:
        found = super().hypothesis(live, reason)
        return replace(found, terms=met_terms(self._terms, found.ids, self._edges))


def _missing(hypothesis: Hypothesis) -> int:
    return sum(not term.met for term in hypothesis.terms)


def allocate(groups: Mapping[int, Sequence[int]], count: int) -> list[int]:
    """At most `count` places, in ascending order, as evenly from all groups as they have them.

    What does not divide evenly, and what a group cannot use, goes to the groups with the largest numbers.
    """
    order = sorted(groups, reverse=True)
    shares = dict.fromkeys(order, 0)
    open_groups = order
    while open_groups and count:
        for group in open_groups:
            if count:
                shares[group] += 1
                count -= 1
        open_groups = [group for group in open_groups if shares[group] < len(groups[group])]
    return sorted(place for group in order for place in groups[group][: shares[group]])
