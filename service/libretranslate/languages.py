"""The pairs of languages that all models together translate, by the codes that clients use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from attendant.service.errors import InvalidFieldError
from attendant.service.settings import Settings
from attendant.service.text.language_codes import language_name, public_codes, short_code
from attendant.service.text.languages import Languages


@dataclass(frozen=True)
class Pair:
    source: str  # as a client names it
    target: str
    model: str
    source_language: str | None  # as the model names it; None: it has no choice
    target_language: str | None


def pairs(models: Iterable[tuple[str, Languages]], settings: Settings) -> list[Pair]:
    """Of every model, by its name and languages; of several with the same pair, the first counts."""
    found: dict[tuple[str, str], Pair] = {}
    for model, languages in models:
        given_source, given_target = settings.pair_of(model)
        sources: dict[str, str | None] = dict(public_codes(languages.source))
        targets: dict[str, str | None] = dict(public_codes(languages.target))
        if not sources and given_source:
            sources = {given_source: None}
        if not targets and given_target:
            targets = {given_target: None}
        for source, own_source in sources.items():
            for target, own_target in targets.items():
                if source != target:
                    found.setdefault((source, target), Pair(source, target, model, own_source, own_target))
    return list(found.values())


def listed(found: Iterable[Pair]) -> list[dict[str, Any]]:
    """As GET /languages answers them: every language, and what it can become; each stays what it is."""
    targets: dict[str, set[str]] = {}
    for pair in found:
        targets.setdefault(pair.source, {pair.source}).add(pair.target)
        targets.setdefault(pair.target, {pair.target})
    return [
        {"code": code, "name": language_name(code), "targets": sorted(codes)} for code, codes in sorted(targets.items())
    ]


def is_same(found: Iterable[Pair], source: str, target: str) -> bool:
    """Whether a text is in the language that is asked for, one of these; it is its own translation then."""
    known = {short_code(code) for pair in found for code in (pair.source, pair.target)}
    return short_code(source) == short_code(target) in known


def pair_for(found: Iterable[Pair], source: str, target: str) -> Pair:
    """InvalidFieldError, as LibreTranslate words it, if no model has this pair."""
    every = list(found)
    best = next((pair for pair in every if (pair.source, pair.target) == (source, target)), None) or next(
        (p for p in every if (short_code(p.source), short_code(p.target)) == (short_code(source), short_code(target))),
        None,
    )
    if best is not None:
        return best
    for code, known in ((source, {p.source for p in every}), (target, {p.target for p in every})):
        if code not in known:
            raise InvalidFieldError(f"{code[:40]} is not supported")
    names = [f"{language_name(code)} ({code})" for code in (target, source)]
    raise InvalidFieldError(f"{names[0]} is not available as a target language from {names[1]}")
