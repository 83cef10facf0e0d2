"""The language of a text, by py3langid: a guess, with what it gives for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from attendant.service.documents.extra import need
from attendant.service.text.language_codes import short_code

READ = 2000  # characters of a text that are looked at


@dataclass(frozen=True)
class Detected:
    language: str  # one of the codes that were asked about
    confidence: float  # 0 to 1, among these


@cache
def _identifier() -> Any:
    langid = need("py3langid.langid", "source_language")
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


def detect(text: str, codes: Sequence[str] | None, most: int = 1) -> list[Detected]:
    """The most probable languages of a text, best first, among these codes or all; none if none of them is known."""
    if codes is not None and len(codes) == 1:
        return [Detected(codes[0], 1.0)]
    readable = text[:READ].encode("utf-8", "replace").decode()  # a lone surrogate says nothing of the language
    ranked = dict(_identifier().rank(readable))
    names = {code: short_code(code) for code in ranked if codes is None} | {
        code: short_code(code) for code in codes or ()
    }
    names = {code: "no" if name == "nb" else name for code, name in names.items()}
    found = {code: ranked[name] for code, name in names.items() if name in ranked}
    total = sum(found.values()) or 1.0
    best = sorted(found, key=lambda code: (-found[code], code))[:most]
    return [Detected(code, found[code] / total) for code in best]
