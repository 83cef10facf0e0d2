"""OPUS-MT's target languages, which a token before the source chooses: `>>fra<<`."""

from __future__ import annotations

from typing import Any

from attendant.model.importers.families.vocabulary import Layout, Vocabulary
from attendant.model.importers.problems import Problems


def language_tokens(tokens: list[str]) -> dict[str, int]:
    """The ids of OPUS-MT's language tokens, by code: `>>fra<<` is fra."""
    return {t[2:-2]: i for i, t in enumerate(tokens) if t.startswith(">>") and t.endswith("<<") and len(t) > 4}


def languages_by_token(
    vocabulary: Vocabulary, layout: Layout, target_language: str | None, problems: Problems
) -> dict[str, Any]:
    """The languages of a run; a target language that the model lacks is a problem."""
    codes = vocabulary.languages
    if target_language is not None and target_language not in codes:
        known = f"one of {', '.join(sorted(codes))}" if codes else "none, since the model has one target language"
        problems.add(f"--target-language takes {known}, not {target_language!r}")
    if not codes:
        return {}
    found: dict[str, Any] = {"source_prefix_by_target": {code: [layout.id_of(index)] for code, index in codes.items()}}
    return found | ({"target_language": target_language} if target_language else {})


def language_notes(languages: dict[str, int], target_language: str | None) -> list[str]:
    """A note for the user if the model has target languages and none was chosen."""
    if not languages or target_language:
        return []
    return [f"the model has {len(languages)} target languages; --target-language sets one"]
