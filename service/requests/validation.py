"""From validation errors of pydantic and FastAPI to one error whose sentences say everything that is wrong."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from attendant.service.errors import InvalidFieldError, InvalidJSONError, ServiceError
from attendant.service.requests.schemas import ANY_TEXT, RequestModel

MOST_PROBLEMS = 10  # listed in one error
LONGEST_PATH = 100  # characters
LONGEST_VALUE = 60  # characters
NOT_AN_OBJECT = ("model_type", "model_attributes_type", "dict_type")

Problem = Mapping[str, Any]  # as pydantic gives it: type, loc, input, ctx
AnyRequest = TypeVar("AnyRequest", bound=RequestModel)


def validate(kind: type[AnyRequest], values: Mapping[str, Any]) -> AnyRequest:
    """The request with these fields; InvalidFieldError lists everything wrong with them."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise refusal(kind, error.errors(include_url=False)) from None


def body_refusal(kind: type[RequestModel], problems: Sequence[Problem], empty: bool) -> ServiceError:
    """The error of a request whose body FastAPI found wrong; `empty`: nothing was sent."""
    first = problems[0]
    if first["type"] == "json_invalid":
        return InvalidJSONError(f"The body is not JSON: {first['ctx']['error']}, at character {first['loc'][-1] + 1}.")
    if len(first["loc"]) == 1 and first["type"] == "missing":
        if empty:
            return InvalidJSONError("The body is empty; it takes a JSON object.")
        return InvalidFieldError("The body takes a JSON object, not null.")
    return refusal(kind, [{**problem, "loc": problem["loc"][1:]} for problem in problems])


def refusal(kind: type[RequestModel], problems: Sequence[Problem]) -> InvalidFieldError:
    """One error with a sentence for each problem; `field` is the first one's."""
    first = problems[0]
    fields = ", ".join(kind.model_fields)
    if first["type"] == "too_many_fields":
        return InvalidFieldError(f"The request has {first['ctx']['count']} fields; it takes {fields}.")
    if first["type"] in NOT_AN_OBJECT and not first["loc"]:
        return InvalidFieldError(f"The body takes a JSON object, not {_shown(first['input'])}.")
    if not first["loc"]:
        return InvalidFieldError(f"A field's name is not valid Unicode; the request takes {fields}.")
    sentences = list(dict.fromkeys(_sentence(kind, problem) for problem in problems))
    return combined_error([(_path(first["loc"]), sentence) for sentence in sentences])


def combined_error(problems: Sequence[tuple[str, str]]) -> InvalidFieldError:
    """One error of (field, sentence) pairs; the first gives the field."""
    sentences = [sentence for _, sentence in problems[:MOST_PROBLEMS]]
    if len(problems) > MOST_PROBLEMS:
        sentences.append(f"And {len(problems) - MOST_PROBLEMS} more.")
    return InvalidFieldError(" ".join(sentences), problems[0][0])


def _sentence(kind: type[RequestModel], problem: Problem) -> str:
    location, found = problem["loc"], problem["type"]
    path = _path(location)
    if found == "extra_forbidden":
        fields = _owner(kind, location).model_fields
        near = difflib.get_close_matches(str(location[-1])[:LONGEST_PATH], fields, 1)
        hint = f"did you mean {near[0]}? It" if near else "it"
        return f"{path} is no field of this request; {hint} takes {', '.join(fields)}."
    if found == "string_too_short":
        return f"{path} is empty; give a text."
    takes = _takes(kind, location)
    if found == "missing":
        return f"{path} is missing; it takes {takes}."
    return f"{path} takes {takes}, not {_shown(problem['input'])}."


def _takes(kind: type[RequestModel], location: Sequence[str | int]) -> str:
    """What a field takes, in words; for an item of a list: an object of its model, the field's `x-items`, or a text."""
    owner, name = _owner(kind, (*location, "")), location[-1]
    if isinstance(name, int):
        place = max(at for at, part in enumerate(location) if isinstance(part, str))  # the list's own name
        of_list = _owner(kind, location[: place + 1]).model_fields.get(str(location[place]))
        listed: Any = (of_list or kind.model_fields[str(location[0])]).json_schema_extra
        is_model = owner is not kind and (of_list is None or model_in(of_list.annotation) is not None)
        items = f"an object with {', '.join(owner.model_fields)}" if is_model else ANY_TEXT
        return str(listed.get("x-items", items))
    field = _owner(kind, location).model_fields.get(name) or kind.model_fields[str(location[0])]
    extra: Any = field.json_schema_extra
    return str(extra["x-takes"])


def _owner(kind: type[RequestModel], location: Sequence[str | int]) -> type[BaseModel]:
    """The model that the last part of a location would be a field of."""
    owner: type[BaseModel] = kind
    for part in location[:-1]:
        field = owner.model_fields.get(str(part))  # None: an item of a list, or an entry of a dict
        owner = (field and model_in(field.annotation)) or owner
    return owner


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of an annotation `Model` or `list[Model]`, each perhaps `| None`."""
    candidates = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType, list) else (annotation,)
    for kind in candidates:
        if get_origin(kind) in (list, Annotated):
            return model_in(get_args(kind)[0] if get_origin(kind) is Annotated else kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _path(location: Sequence[str | int]) -> str:
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return ascii("".join(parts).removeprefix("."))[1:-1][:LONGEST_PATH]


def _shown(found: Any) -> str:
    """A value as JSON would have it, cut short."""
    try:
        text = json.dumps(found)
    except (TypeError, ValueError, RecursionError):
        text = ascii(found)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."
