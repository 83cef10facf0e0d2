"""An error as OpenAI's clients expect it."""

from __future__ import annotations

from attendant.service.errors import InvalidFieldError, ServiceError, UnknownModelError
from attendant.service.requests.content import Json

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def openai_error(error: ServiceError) -> tuple[int, Json]:
    """Status and body."""
    status = 400 if isinstance(error, InvalidFieldError) else error.status
    kind = "server_error" if status >= 500 else TYPES.get(status, "invalid_request_error")
    code = "model_not_found" if isinstance(error, UnknownModelError) else error.type
    return status, {"error": {"message": error.message, "type": kind, "param": error.field, "code": code}}
