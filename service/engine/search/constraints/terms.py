"""Terms that must come, each in one of several forms, in any order: what a hypothesis has of them, token by token.

A term has come once the tokens of one of its forms stand in the target, one after the other. Forms may overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Ids = tuple[int, ...]
OTHER, AN_EDGE = -1, -2  # tokens of no term, by which a state goes on
Begun = tuple[int, int, int]  # term, form, how many of its tokens are the last tokens of the hypothesis


@dataclass(frozen=True)
class Form:
    ids: Ids
    text: str
    at_edge: bool = False  # it counts only where the target begins, and after the tokens that are edges


@dataclass(frozen=True)
class Term:
    forms: tuple[Form, ...]
    source: str | None = None  # what it translates, for the answer

    @property
    def shortest(self) -> int:
        """Tokens that it takes at least, wherever it comes."""
        return min(len(form.ids) for form in self.forms if not form.at_edge)

    def found_in(self, ids: Sequence[int], edges: frozenset[int]) -> Form | None:
        """The first of its forms that stands in these tokens."""
        return next((form for form in self.forms if _stands_in(form, ids, edges)), None)


@dataclass(frozen=True)
class MetTerm:
    """A term as a hypothesis has it."""

    source: str | None
    target: str  # the form that came, or the first one
    met: bool


def met_terms(terms: Sequence[Term], ids: Sequence[int], edges: frozenset[int] = frozenset()) -> tuple[MetTerm, ...]:
    found = [(term, term.found_in(ids, edges)) for term in terms]
    return tuple(MetTerm(term.source, (form or term.forms[0]).text, form is not None) for term, form in found)


def _stands_in(form: Form, ids: Sequence[int], edges: frozenset[int]) -> bool:
    size = len(form.ids)
    return any(
        tuple(ids[place : place + size]) == form.ids and (not form.at_edge or not place or ids[place - 1] in edges)
        for place in range(len(ids) - size + 1)
    )


@dataclass(eq=False, slots=True)
class State:
    """What a hypothesis has of all terms."""

    met: int  # bit mask of terms
    begun: tuple[Begun, ...]
    at_edge: bool  # no token has come yet, or one that is an edge
    missing: int  # tokens that the other terms take, at least
    group: int  # 2 for each term that is met, and 1 if one is begun: hypotheses are compared within their group
    come: int  # tokens that have come of the begun form that is furthest; 0 if none is
    whole: int  # and all tokens of that form
    next_tokens: tuple[int, ...]  # those that begin or continue a term, in ascending order
    after: dict[int, State] = field(default_factory=dict)  # those that were asked for


class States:
    """The states of one search; each is made once."""

    def __init__(self, terms: Sequence[Term], edges: frozenset[int] = frozenset()) -> None:
        self._terms, self._edges = terms, edges
        self._shortest = [term.shortest for term in terms]
        self._tokens = {token for term in terms for form in term.forms for token in form.ids}
        self._states: dict[tuple[int, tuple[Begun, ...], bool], State] = {}
        self.first = self._state(0, (), True)

    def read(self, ids: Sequence[int]) -> State:
        """The state of these tokens."""
        state = self.first
        for token in ids:
            state = self.after(state, token)
        return state

    def after(self, state: State, token: int) -> State:
        """The state with one token more."""
        key = token if token in self._tokens else AN_EDGE if token in self._edges else OTHER
        found = state.after.get(key)
        if found is None:
            found = state.after[key] = self._extend(state, token)
        return found

    def _extend(self, state: State, token: int) -> State:
        met = state.met
        begun = [
            (term, form, count + 1) for term, form, count in state.begun if self._token(term, form, count) == token
        ]
        begun += [(term, form, 1) for term, form in self._beginnings(state) if self._token(term, form, 0) == token]
        for term, form, count in begun:
            if count == len(self._terms[term].forms[form].ids):
                met |= 1 << term
        return self._state(met, tuple(entry for entry in begun if not met >> entry[0] & 1), token in self._edges)

    def _token(self, term: int, form: int, place: int) -> int:
        return self._terms[term].forms[form].ids[place]

    def _beginnings(self, state: State) -> list[tuple[int, int]]:
        """(term, form) of those that may begin with the next token."""
        return [
            (number, place)
            for number, term in enumerate(self._terms)
            if not state.met >> number & 1
            for place, form in enumerate(term.forms)
            if state.at_edge or not form.at_edge
        ]

    def _state(self, met: int, begun: tuple[Begun, ...], at_edge: bool) -> State:
        key = (met, begun, at_edge)
        found = self._states.get(key)
        if found is None:
            missing = sum(size for term, size in enumerate(self._shortest) if not met >> term & 1)
            # One begun term is continued at once, so the tokens that it has already count; of others they may not.
            saved = [self._shortest[t] - len(self._terms[t].forms[f].ids) + count for t, f, count in begun]
            missing -= max([0, *saved])
            group = 2 * met.bit_count() + bool(begun)
            come, whole = max([(count, len(self._terms[t].forms[f].ids)) for t, f, count in begun], default=(0, 0))
            found = self._states[key] = State(met, begun, at_edge, missing, group, come, whole, ())
            starts = {self._token(term, form, 0) for term, form in self._beginnings(found)}
            found.next_tokens = tuple(sorted(starts | {self._token(*entry) for entry in begun}))
        return found
