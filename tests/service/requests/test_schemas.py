"""Requests: strict types, every problem told at once, in sentences that name the field and what it takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute
from pydantic import ValidationError

from attendant.service.http.route import body_model
from attendant.service.http.routes import ROUTES
from attendant.service.requests.schemas import (
    LARGEST_LENGTH,
    GenerateRequest,
    NextTokenRequest,
    ReloadRequest,
    RequestModel,
    ScoreRequest,
)
from attendant.service.requests.validation import validate
from tests.support.serving import Service, in_process

KINDS: list[type[RequestModel]] = [
    GenerateRequest,
    NextTokenRequest,
    ScoreRequest,
    ReloadRequest,
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with in_process(tmp_path_factory.mktemp("bundle")) as service:
        yield service


def error(service: Service, body: Any, status: int, path: str = "/v1/generate") -> tuple[str, str | None]:
    """The message and the field of a refused request."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = service.client.post(path, content=content)
    assert answer.status_code == status, answer.text
    found = answer.json()["error"]
    return found["message"], found["field"]


def refusal(service: Service, body: Any, path: str = "/v1/generate") -> tuple[str, str | None]:
    return error(service, body, 422, path)


def request_models() -> list[type[RequestModel]]:
    """The body of every route that takes one."""
    routes = list(ROUTES)
    kinds = [body_model(route) for route in routes if isinstance(route, APIRoute) and route.body_field]
    assert len(kinds) >= 8
    return kinds


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind in request_models() for field in kind.model_fields])
@pytest.mark.parametrize("content", [[{"x": None}] * 1000, {f"key{i}": {"x": None} for i in range(1000)}])
def test_a_thousand_wrong_values_in_a_field_are_few_problems(
    kind: type[RequestModel], field: str, content: Any
) -> None:
    """Each problem costs time in the event loop, and at most ten are told."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate({field: content, "no such field": 1})
    assert caught.value.error_count() < 20


def test_one_text_and_a_list_of_one_are_the_same_request() -> None:
    assert validate(GenerateRequest, {"inputs": "a"}) == validate(GenerateRequest, {"inputs": ["a"]})


def test_defaults_are_the_contracts() -> None:
    defaults = validate(GenerateRequest, {"inputs": "a"}).model_dump(exclude={"inputs"})
    assert defaults == {
        "beam_size": 1,
        "num_hypotheses": 1,
        "length_penalty": 1.0,
        "early_stopping": False,
        "max_length": None,
        "min_length": 0,
        "repetition_penalty": 1.0,
        "no_repeat_ngram_size": 0,
        "target_prefix": None,
        "terms": None,
        "glossary": None,
        "forbid": None,
        "choices": None,
        "source_language": None,
        "target_language": None,
        "allow_unknown": None,
        "temperature": None,
        "top_k": None,
        "top_p": None,
        "seed": None,
        "logprobs": False,
        "all_or_nothing": False,
        "timeout_ms": None,
        "split": "none",
        "format": "text",
        "protect": [],
        "protect_pattern": None,
        "stream": False,
        "model": None,
    }


@pytest.mark.parametrize(
    "body", [b"", b" ", b"{", b"abc", b"\xff\xfe", b"\xff", b"{}x", b"[" * 100_000, b'{"inputs": \x01}', b"1" * 5000]
)
def test_what_is_not_json_is_told_so(body: bytes, service: Service) -> None:
    message, field = error(service, body, 400)
    assert re.fullmatch(r"The body is (not JSON: .+|empty; it takes a JSON object)\.", message)
    assert field is None


@pytest.mark.parametrize("body", [b"[]", b"null", b'"inputs"', b"3", b"true"])
def test_json_that_is_no_object_is_refused(body: bytes, service: Service) -> None:
    assert refusal(service, body)[0] == f"The body takes a JSON object, not {body.decode()}."


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("inputs", 3, "inputs takes a text or a list of texts, at least one, not 3."),
        ("inputs", [], "at least one, not []."),
        ("inputs", None, "at least one, not null."),
        ("beam_size", 0, "beam_size takes a whole number from 1, not 0."),
        ("beam_size", -1, "not -1."),
        ("beam_size", 1.0, "not 1.0."),
        ("beam_size", "2", 'not "2".'),
        ("beam_size", True, "not true."),
        ("beam_size", None, "not null."),
        ("length_penalty", float("nan"), "length_penalty takes a number from 0 to 10, not NaN."),
        ("length_penalty", float("inf"), "not Infinity."),
        ("length_penalty", -1, "not -1."),
        ("early_stopping", "always", 'early_stopping takes true, false or "never", not "always".'),
        ("early_stopping", 1, "not 1."),
        ("early_stopping", None, "not null."),
        (
            "temperature",
            0,
            "temperature takes a number from 0.01 to 100, and is left out where nothing is to be sampled",
        ),
        ("temperature", float("-inf"), "not -Infinity."),
        ("top_p", 0, "top_p takes a number above 0, up to 1, or null, not 0."),
        ("top_p", 1.5, "not 1.5."),
        ("top_k", 0, "top_k takes a whole number from 1, or null, not 0."),
        ("seed", 2**63, "seed takes a whole number from 0 to 2**63 - 1"),
        ("stream", 1, "stream takes true or false, not 1."),
        ("target_prefix", ["K"], 'target_prefix takes a text, or null, not ["K"].'),
        ("timeout_ms", 0, "timeout_ms takes a whole number from 1"),
        ("max_length", 0, "max_length takes a whole number from 1"),
    ],
)
def test_a_wrong_value_is_named_with_what_the_field_takes(
    field: str, value: Any, sentence: str, service: Service
) -> None:
    message, named = refusal(service, {"inputs": "a", field: value})
    assert sentence in message
    assert named == field


def test_an_item_of_a_list_is_named_by_its_place(service: Service) -> None:
    assert refusal(service, {"inputs": ["a", "b", 3]}) == ("inputs[2] takes a text, not 3.", "inputs[2]")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/generate", {"inputs": ""}, "inputs"),
        ("/v1/generate", {"inputs": ["a", ""], "all_or_nothing": True}, "inputs[1]"),
        ("/v1/next-token", {"source": ""}, "source"),
        ("/v1/score", {"source": "", "target": ""}, "source"),
    ],
)
def test_an_empty_text_is_named(path: str, body: Any, field: str, service: Service) -> None:
    assert refusal(service, body, path) == (f"{field} is empty; give a text.", field)


def test_a_missing_field_is_named(service: Service) -> None:
    assert refusal(service, {})[0].startswith("inputs is missing; it takes a text")


def test_an_unknown_field_is_refused_and_the_known_ones_listed(service: Service) -> None:
    message, _ = refusal(service, {"source": "a", "target": "b", "beam": 2}, "/v1/score")
    assert message == f"beam is no field of this request; it takes {', '.join(ScoreRequest.model_fields)}."


def test_a_misspelt_field_is_told_the_one_that_was_meant(service: Service) -> None:
    message, _ = refusal(service, {"inputs": "a", "beam_sise": 2})
    assert message.startswith("beam_sise is no field of this request; did you mean beam_size? It takes inputs, ")


def test_an_unknown_field_inside_another_is_told_the_ones_known_there(service: Service) -> None:
    body = {"model": "fake", "prompt": "a", "stream": True, "stream_options": {"usage": True}}
    answer = service.client.post("/v1/completions", json=body)
    message = "stream_options.usage is no field of this request; it takes include_usage."
    assert answer.json()["error"]["message"] == message


def test_all_problems_are_told_at_once_and_the_first_gives_the_field(service: Service) -> None:
    message, field = refusal(service, {"inputs": "a", "beam_size": 0, "top_p": 2, "colour": "red"})
    assert field == "beam_size"
    assert all(name in message for name in ("beam_size takes", "top_p takes", "colour is no field"))


def test_more_problems_than_are_told_are_counted(service: Service) -> None:
    assert refusal(service, {"inputs": "a", **{f"f{i}": 0 for i in range(13)}})[0].endswith(" And 3 more.")


def test_a_long_value_is_cut_short_in_the_sentence(service: Service) -> None:
    assert len(refusal(service, {"inputs": "a", "beam_size": "x" * 10_000})[0]) < 200


def test_fifty_thousand_unknown_fields_are_one_short_sentence(service: Service) -> None:
    message, _ = refusal(service, {f"f{i}": 0 for i in range(50_000)})
    assert "The request has 50000 fields" in message
    assert len(message) < 400


def test_a_lone_surrogate_is_refused_by_its_field(service: Service) -> None:
    assert "lone surrogate" in refusal(service, rb'{"inputs": "\ud800"}')[0]
    assert refusal(service, rb'{"inputs": "\ud800", "beam_size": 0}')[1] == "beam_size"
    assert "not valid Unicode" in refusal(service, rb'{"inputs": "a", "\ud800": 0}')[0]


@pytest.mark.parametrize("content_type", [None, "application/json", "application/x-www-form-urlencoded", "text/plain"])
def test_a_body_is_json_whatever_its_content_type_says(content_type: str | None, service: Service) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    assert service.client.post("/v1/generate", content=b'{"inputs": "cat"}', headers=headers).status_code == 200


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_tells_its_meaning_and_the_range_that_is_checked(kind: type[RequestModel]) -> None:
    for name, field in kind.model_json_schema()["properties"].items():
        assert field["description"], name
        assert "x-unit" in field, name
        rules = [field, *field.get("anyOf", [])]
        bounds = {
            rule[bound] for rule in rules for bound in ("minimum", "maximum", "exclusiveMinimum") if bound in rule
        }
        told = {
            float(number) for number in re.findall(r"[\d.]+", field["x-takes"].replace("2**63 - 1", str(2**63 - 1)))
        }
        assert {float(bound) for bound in bounds} - {LARGEST_LENGTH} <= told, name
