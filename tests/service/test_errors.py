"""Errors: what every answer that tells of one relies on."""

from __future__ import annotations

from attendant.service.errors import InvalidFieldError


def test_a_lone_surrogate_in_a_message_becomes_what_an_answer_can_have() -> None:
    error = InvalidFieldError("\udc00\ud800 is not supported", "source")
    assert error.message == str(error) == "\\udc00\\ud800 is not supported"
    assert InvalidFieldError("猫 is not supported").message == "猫 is not supported"
