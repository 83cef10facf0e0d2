"""The languages of models that have one pair and do not name it, as the settings give them."""

from __future__ import annotations

import re
from dataclasses import dataclass

ENTRY = re.compile(r"(.{1,200}):([A-Za-z][A-Za-z_-]{1,19}):([A-Za-z][A-Za-z_-]{1,19})")


@dataclass(frozen=True)
class LanguagePair:
    model: str
    source: str
    target: str


def read_pairs(text: str) -> tuple[LanguagePair, ...]:
    """ValueError if an entry is not MODEL:SOURCE:TARGET."""
    found = [ENTRY.fullmatch(entry.strip()) for entry in text.split(",")]
    if None in found:
        raise ValueError(text)
    return tuple(LanguagePair(*each.groups()) for each in found if each is not None)
