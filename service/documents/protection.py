"""What comes through a translation as it is: placeholders, addresses, and what a pattern of the request's finds.

Patterns run in RE2, whose time is linear in the text whatever they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from attendant.service.documents.extra import need
from attendant.service.errors import InvalidFieldError

LONGEST_PATTERN = 1000  # characters
PATTERN_BYTES = 2**20  # that a compiled pattern may take
KINDS = ("placeholders", "urls", "emails")
# Each alternative begins with a character that it does not repeat, so none is tried twice from the same place.
IN_BRACES = r"\{{1,2}[^\s<>\"'{}]{0,100}\}{1,2}"  # a placeholder in an address
URL_CHARACTERS = rf"(?:[^\s<>\"'{{}}]|{IN_BRACES}){{1,2000}}(?<![.,;:!?)\]])"
PATTERNS = {
    "placeholders": r"\{\{[^{}\n]{0,100}\}\}|\$?\{[^{}\n]{0,100}\}"  # {{name}} ${name} {0}
    r"|%\([A-Za-z_]\w{0,60}\)[#0\- +]{0,4}\d{0,4}[diouxXeEfFgGcrs]"  # %(name)s
    r"|%(?:\d{1,2}\$)?[#0\-+]{0,4}\d{0,4}(?:\.\d{1,4})?[sdiuxXfeEgGc@](?![A-Za-z])|%\d{1,2}(?!\w|%)",  # %s %1$s %1
    "urls": rf"(?:https?|ftp)://{URL_CHARACTERS}|\bwww\.{URL_CHARACTERS}",
    "emails": r"\b[A-Za-z0-9._%+\-]{1,64}@[A-Za-z0-9\-]{1,63}(?:\.[A-Za-z0-9\-]{1,63}){1,8}\b",
}


@dataclass(frozen=True)
class Protection:
    """`kinds` are of KINDS; `pattern` is a regular expression of RE2, or None."""

    kinds: tuple[str, ...] = ()
    pattern: str | None = None

    def __bool__(self) -> bool:
        return bool(self.kinds) or self.pattern is not None

    def find(self, text: str) -> list[tuple[int, int]]:
        """What is protected, by its place; overlapping finds are one."""
        found = []
        if self.pattern is not None:
            found += [match.span() for match in compiled(self.pattern).finditer(text) if match.end() > match.start()]
        if self.kinds:
            found += [match.span() for match in _own(self.kinds).finditer(text)]
        return _merged(sorted(found))


def _merged(found: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in found:
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


@lru_cache(8)
def _own(kinds: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(PATTERNS[kind] for kind in dict.fromkeys(kinds)))


@lru_cache(16)
def compiled(pattern: str) -> Any:
    """The pattern in RE2; InvalidFieldError if it is none, or too large."""
    re2 = need("re2", "protect_pattern")
    options = re2.Options()
    options.max_mem, options.log_errors = PATTERN_BYTES, False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = (
            error.args[0].decode("utf-8", "replace") if error.args and isinstance(error.args[0], bytes) else str(error)
        )
        raise InvalidFieldError(
            f"protect_pattern is no regular expression of RE2: {reason}.", "protect_pattern"
        ) from None
