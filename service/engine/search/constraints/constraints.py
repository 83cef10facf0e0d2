"""What a target must have, must not have, or must be."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from attendant.service.engine.search.constraints.choices import Choices
from attendant.service.engine.search.constraints.forbidden import Forbidden
from attendant.service.engine.search.constraints.terms import Term


@dataclass(frozen=True, kw_only=True)
class Constraints:
    terms: tuple[Term, ...] = ()  # only for beam search
    forbidden: Forbidden | None = None
    choices: Choices | None = None
    edges: frozenset[int] = field(default=frozenset(), compare=False, repr=False)  # see Form.at_edge; the model's

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """The tokens of all phrases, one after the other."""
        found = [token for term in self.terms for form in term.forms for token in form.ids]
        if self.forbidden is not None:
            found += [token for phrase in self.forbidden.phrases for _, token, _ in phrase.edges]
        if self.choices is not None:
            found += [token for ids in self.choices.answers for token in ids]
        return tuple(found)
