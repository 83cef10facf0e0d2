"""Requests: strict types, every problem told at once, in sentences that name the field and what it takes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from service.errors import InvalidFieldError, InvalidJSONError
from service.http.schemas import GenerateRequest, NextTokenRequest, ReloadRequest, Request, ScoreRequest, parse

KINDS = [GenerateRequest, NextTokenRequest, ScoreRequest, ReloadRequest]


def refusal(body: Any, kind: type[Request] = GenerateRequest) -> InvalidFieldError:
    with pytest.raises(InvalidFieldError) as caught:
        parse(kind, body if isinstance(body, bytes) else json.dumps(body).encode())
    return caught.value


def test_one_text_and_a_list_of_one_are_the_same_request() -> None:
    assert parse(GenerateRequest, b'{"inputs": "a"}') == parse(GenerateRequest, b'{"inputs": ["a"]}')


def test_defaults_are_the_contracts() -> None:
    defaults = parse(GenerateRequest, b'{"inputs": "a"}').model_dump(exclude={"inputs"})
    assert defaults == {
        "beam_size": 1, "num_hypotheses": 1, "length_penalty": 1.0, "max_length": None, "min_length": 0,
        "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "target_prefix": None, "temperature": None, "top_k": None,
        "top_p": None, "seed": None, "logprobs": False, "timeout_ms": None, "stream": False,
    }  # fmt: skip


@pytest.mark.parametrize("body", [b"", b" ", b"{", b"abc", b"\xff\xfe", b"{}x", b"[" * 100_000, b'{"inputs": \x01}'])
def test_what_is_not_json_is_told_so(body: bytes) -> None:
    with pytest.raises(InvalidJSONError, match=r"The body is (not JSON: .+|empty; it takes a JSON object)\."):
        parse(GenerateRequest, body)


@pytest.mark.parametrize("body", [b"[]", b"null", b'"inputs"', b"3"])
def test_json_that_is_no_object_is_refused(body: bytes) -> None:
    assert "The body takes a JSON object" in refusal(body).message


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
def test_a_wrong_value_is_named_with_what_the_field_takes(field: str, value: Any, sentence: str) -> None:
    error = refusal({"inputs": "a", field: value})
    assert sentence in error.message
    assert error.field == field


def test_an_item_of_a_list_is_named_by_its_place() -> None:
    error = refusal({"inputs": ["a", "b", 3]})
    assert (error.message, error.field) == ("inputs[2] takes a text, not 3.", "inputs[2]")


def test_a_missing_field_is_named() -> None:
    assert refusal({}).message.startswith("inputs is missing; it takes a text")


def test_an_unknown_field_is_refused_and_the_known_ones_listed() -> None:
    error = refusal({"source": "a", "target": "b", "beam": 2}, ScoreRequest)
    assert error.message == "beam is no field of this request; it takes source, target, timeout_ms."


def test_all_problems_are_told_at_once_and_the_first_gives_the_field() -> None:
    error = refusal({"inputs": "a", "beam_size": 0, "top_p": 2, "colour": "red"})
    assert error.field == "beam_size"
    assert all(name in error.message for name in ("beam_size takes", "top_p takes", "colour is no field"))


def test_a_long_value_is_cut_short_in_the_sentence() -> None:
    assert len(refusal({"inputs": "a", "beam_size": "x" * 10_000}).message) < 200


def test_a_hundred_thousand_unknown_fields_are_one_short_sentence() -> None:
    error = refusal({f"f{i}": 0 for i in range(100_000)})
    assert "The request has 100001 wrong or unknown fields" in error.message
    assert len(error.message) < 400


def test_a_lone_surrogate_is_left_to_the_check_of_texts() -> None:
    assert parse(GenerateRequest, rb'{"inputs": "\ud800"}').inputs == ["\ud800"]
    assert refusal(rb'{"inputs": "\ud800", "beam_size": 0}').field == "beam_size"
    assert "not valid Unicode" in refusal(rb'{"inputs": "a", "\ud800": 0}').message


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_tells_its_meaning_and_the_range_that_is_checked(kind: type[Request]) -> None:
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
        assert {float(bound) for bound in bounds} - {1e6} <= told, name
