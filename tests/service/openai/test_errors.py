"""Errors in the form that OpenAI's clients read."""

from __future__ import annotations

import pytest

from attendant.service.errors import (
    DeadlineError,
    InvalidFieldError,
    NotFoundError,
    QueueFullError,
    ServiceError,
    UnauthorizedError,
    UnknownModelError,
)
from attendant.service.openai.errors import openai_error


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (InvalidFieldError("n is wrong.", "n"), 400, "invalid_request_error", "invalid_field"),
        (UnauthorizedError("no key."), 401, "authentication_error", "unauthorized"),
        (NotFoundError("no such path."), 404, "invalid_request_error", "not_found"),
        (UnknownModelError("no such model.", "model"), 404, "invalid_request_error", "model_not_found"),
        (QueueFullError("the queue is full.", 1), 429, "rate_limit_error", "queue_full"),
        (ServiceError("it broke."), 500, "server_error", "internal_error"),
        (DeadlineError("too late."), 504, "server_error", "deadline"),
    ],
)
def test_an_error_has_the_status_type_and_code_of_openai(
    error: ServiceError, status: int, kind: str, code: str
) -> None:
    fields = {"message": error.message, "type": kind, "param": error.field, "code": code}
    assert openai_error(error) == (status, {"error": fields})
