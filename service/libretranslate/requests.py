"""A request to /translate, checked and worded as LibreTranslate does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attendant.service.errors import InvalidFieldError
from attendant.service.libretranslate.languages import Pair
from attendant.service.requests.schemas import GenerateRequest
from attendant.service.requests.validation import validate

AUTO = "auto"


@dataclass(frozen=True)
class Translation:
    texts: list[str]
    batch: bool  # q was a list
    source: str
    target: str
    html: bool
    alternatives: int


def read_translation(fields: Mapping[str, Any], most_alternatives: int) -> Translation:
    q = fields.get("q")
    for name in ("q", "source", "target"):
        if not fields.get(name):
            raise InvalidFieldError(f"Invalid request: missing {name} parameter")
    texts: list[Any] = q if isinstance(q, list) else [q]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidFieldError("Invalid request: q parameter is not a text, nor a list of texts")
    form = fields.get("format") or "text"
    if form not in ("text", "html"):
        raise InvalidFieldError(f"{str(form)[:40]} format is not supported")
    try:
        alternatives = max(0, int(fields.get("alternatives") or 0))
    except (TypeError, ValueError):
        raise InvalidFieldError("Invalid request: alternatives parameter is not a number") from None
    if alternatives > most_alternatives:
        raise InvalidFieldError(f"Invalid request: alternatives parameter must be <= {most_alternatives}")
    source, target = str(fields["source"]), str(fields["target"])
    return Translation(texts, isinstance(q, list), source, target, form == "html", alternatives)


def generate_request(translation: Translation, texts: list[str], pair: Pair) -> GenerateRequest:
    """The same request to POST /v1/generate."""
    hypotheses = 1 if translation.html else translation.alternatives + 1  # with HTML there are none, as there
    wide = {"beam_size": max(4, hypotheses), "num_hypotheses": hypotheses} if hypotheses > 1 else {}
    return validate(
        GenerateRequest,
        {
            "inputs": texts,
            "split": "sentences",
            "format": "html" if translation.html else "text",
            "source_language": pair.source_language,
            "target_language": pair.target_language,
            "all_or_nothing": True,
            "model": pair.model,
            **wide,
        },
    )
