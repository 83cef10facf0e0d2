"""The known name that a misspelled one was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(name: str, known: Iterable[str], similarity: float = 0.6) -> str | None:
    """The most similar of the known names, of at least this similarity (0 to 1), or None."""
    return next(iter(difflib.get_close_matches(name, known, 1, similarity)), None)
