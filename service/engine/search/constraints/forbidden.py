"""Phrases that must not come: the tokens that would complete one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Ids = tuple[int, ...]
ANYWHERE, AT_EDGE = 0, -1  # nodes where phrases begin


@dataclass(frozen=True)
class Phrase:
    """All ways to cut a phrase into tokens, as edges between places in it, from 0 to the largest.

    (2, 7, 5) is token 7, from place 2 to place 5.
    """

    edges: tuple[tuple[int, int, int], ...]
    at_edge: bool = False  # it is forbidden only where the target begins, and after the tokens that are edges


def chain(ids: Sequence[int], at_edge: bool = False) -> Phrase:
    """A phrase of which only this way counts."""
    return Phrase(tuple((place, token, place + 1) for place, token in enumerate(ids)), at_edge)


class Forbidden:
    """Equal and hashed by its phrases; never changed, so that the tasks of a request share one."""

    def __init__(self, phrases: Iterable[Phrase], edges: frozenset[int] = frozenset()) -> None:
        self.phrases = tuple(dict.fromkeys(phrases))
        self._edges = edges
        self._hash = hash(self.phrases)
        self._steps: dict[int, dict[int, list[int]]] = {}  # node: token: nodes
        completing: dict[int, set[int]] = {ANYWHERE: set(), AT_EDGE: set()}  # node: tokens that end a phrase
        self._longest = 0  # tokens before the one that completes a phrase, at most
        nodes = 1
        for phrase in self.phrases:
            last = max(to for _, _, to in phrase.edges)
            self._longest = max(self._longest, last)
            first = AT_EDGE if phrase.at_edge else ANYWHERE
            for start, token, to in phrase.edges:
                node = nodes + start if start else first
                if to == last:
                    completing.setdefault(node, set()).add(token)
                else:
                    self._steps.setdefault(node, {}).setdefault(token, []).append(nodes + to)
            nodes += last
        self._completing = {node: frozenset(tokens) for node, tokens in completing.items()}
        self._inside = {token for steps in self._steps.values() for token in steps}

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Forbidden) and self.phrases == other.phrases

    @property
    def always(self) -> frozenset[int]:
        """The tokens that are a phrase by themselves."""
        return self._completing[ANYWHERE]

    def next_tokens(self, ids: Sequence[int]) -> frozenset[int]:
        """The tokens that may not come after these."""
        start = len(ids)
        if not self._completing[AT_EDGE] and (not ids or ids[-1] not in self._inside):
            return self.always  # no phrase of several tokens is begun
        while start > 0 and len(ids) - start < self._longest and ids[start - 1] in self._inside:
            start -= 1
        nodes = self._first(ids, start)
        for place in range(start, len(ids)):
            reached = {to for node in (ANYWHERE, *nodes) for to in self._steps.get(node, {}).get(ids[place], ())}
            nodes = reached | self._first(ids, place + 1)
        return self.always.union(*(self._completing.get(node, ()) for node in nodes)) if nodes else self.always

    def _first(self, ids: Sequence[int], place: int) -> set[int]:
        return {AT_EDGE} if not place or ids[place - 1] in self._edges else set()

    def occurs_in(self, ids: Sequence[int]) -> bool:
        return any(token in self.next_tokens(ids[:place]) for place, token in enumerate(ids))
