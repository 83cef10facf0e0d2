"""A model's own defaults, from its bundle, for the fields that a request leaves out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from attendant.service.errors import InvalidFieldError
from attendant.service.requests.schemas import GenerateRequest
from attendant.service.requests.validation import validate

FIELDS = (
    "beam_size",
    "length_penalty",
    "early_stopping",
    "max_length",
    "min_length",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "allow_unknown",
)

log = logging.getLogger("attendant")


def usable_defaults(generation: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest's defaults that would be valid in a request; others are left out with a warning in the log."""
    usable = {}
    for name in FIELDS:
        if name not in generation:
            continue
        try:
            validate(GenerateRequest, {"inputs": "-", name: generation[name]})
        except InvalidFieldError as error:
            log.warning("the bundle's default is left out: %s", error.message)
        else:
            usable[name] = generation[name]
    return usable


def fitting_defaults(
    defaults: Mapping[str, Any], request: GenerateRequest, *, start: int, most_hypotheses: int, longest: int
) -> dict[str, Any]:
    """The defaults of the fields that a request leaves out, made to agree with those that it gives.

    The manifest counts the `start` tokens of a target in its lengths; a request does not.
    """
    fields = {name: default for name, default in defaults.items() if name not in request.model_fields_set}
    if request.temperature is not None:
        fields.pop("beam_size", None)
    if "beam_size" in fields:
        fields["beam_size"] = min(max(fields["beam_size"], request.num_hypotheses), most_hypotheses)
    if "max_length" in fields:
        least = request.min_length + 1 if "min_length" in request.model_fields_set else 1
        fields["max_length"] = min(max(fields["max_length"] - start, least), longest)
    if "min_length" in fields:
        limit = fields.get("max_length", request.max_length) or longest
        fields["min_length"] = min(max(fields["min_length"] - start, 0), limit - 1)
    return fields
