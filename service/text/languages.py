"""The languages of a bundle: which codes a request may name, and the tokens that tell the model about them.

source_prefix             code: ids before the source, by its own language (M2M-100, mBART-50)
source_prefix_by_target   code: ids before the source, by the target's language (OPUS-MT, SMaLL-100)
target_prefix             code: ids that every target starts with, by its language (M2M-100, mBART-50)
source_language           the code that is used if a request names none
target_language           likewise
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from attendant.service.errors import InvalidFieldError, StartError

Ids = tuple[int, ...]
CODES_NAMED = 200  # most codes that an error message lists


@dataclass(frozen=True, kw_only=True)
class Languages:
    source_prefix: Mapping[str, Ids] = field(default_factory=dict)
    source_prefix_by_target: Mapping[str, Ids] = field(default_factory=dict)
    target_prefix: Mapping[str, Ids] = field(default_factory=dict)
    source_language: str | None = None
    target_language: str | None = None

    @cached_property
    def source(self) -> list[str]:
        """The codes that `source_language` takes."""
        return sorted(self.source_prefix)

    @cached_property
    def target(self) -> list[str]:
        """The codes that `target_language` takes."""
        return sorted(self.source_prefix_by_target.keys() | self.target_prefix.keys())

    def __bool__(self) -> bool:
        return bool(self.source or self.target)

    @property
    def longest_target_prefix(self) -> int:
        return max(map(len, self.target_prefix.values()), default=0)

    def choose(self, source: str | None, target: str | None) -> Chosen:
        """The tokens of a request's languages, or an InvalidFieldError."""
        source = _choice("source_language", source, self.source_language, self.source)
        target = _choice("target_language", target, self.target_language, self.target)
        if source is None and target is None:
            return Chosen()
        by_target = self.source_prefix_by_target.get(target or "", ())
        before = (*by_target, *self.source_prefix.get(source or "", ()))
        return Chosen(before, self.target_prefix.get(target or ""))


@dataclass(frozen=True)
class Chosen:
    """Tokens for a request's languages; None: what the bundle uses if no language is named."""

    source_prefix: Ids | None = None
    start: Ids | None = None  # tokens that the target starts with; left out of the answer


def read_languages(found: Mapping[str, Any], source_vocab: int, target_vocab: int, longest: int) -> Languages:
    """A manifest's languages; StartError for ids outside the vocabulary, or a prefix of more than `longest` tokens."""
    tables: dict[str, Any] = {
        name: _table(name, found.get(name, {}), vocabulary, longest)
        for name, vocabulary in (
            ("source_prefix", source_vocab),
            ("source_prefix_by_target", source_vocab),
            ("target_prefix", target_vocab),
        )
    }
    languages = Languages(**tables)
    given: dict[str, Any] = {}
    for name, codes in (("source_language", languages.source), ("target_language", languages.target)):
        code = found.get(name)
        if code is not None and codes and code not in codes:
            raise StartError(f"languages.{name} in the manifest is {str(code)[:40]!r}, which is none of its codes.")
        given[name] = code if codes else None
    return Languages(**tables, **given)


def _table(name: str, found: Any, vocabulary: int, longest: int) -> dict[str, Ids]:
    good = isinstance(found, dict) and all(
        isinstance(ids, list) and len(ids) <= longest and all(type(i) is int and 0 <= i < vocabulary for i in ids)
        for ids in found.values()
    )
    if not good:
        raise StartError(
            f"languages.{name} in the manifest takes codes with at most {longest} ids from 0 to {vocabulary - 1} each. "
            "Export the model again."
        )
    return {code: tuple(ids) for code, ids in found.items()}


def _choice(field_name: str, code: str | None, default: str | None, codes: list[str]) -> str | None:
    if code is None:
        code = default
    if not codes:
        if code is not None:
            raise InvalidFieldError(f"{field_name} is {code[:40]!r}, and this model has no such choice.", field_name)
        return None
    if code in codes:
        return code
    known = ", ".join(codes[:CODES_NAMED])
    wrong = "is missing" if code is None else f"is {code[:40]!r}"
    raise InvalidFieldError(f"{field_name} {wrong}; this model takes one of: {known}.", field_name)
