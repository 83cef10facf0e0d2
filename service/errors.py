"""What can go wrong, as a tree; each class carries its HTTP status and its type, each error a sentence.

ServiceError                 500 internal_error
  InvalidJSONError           400 invalid_json          the body is not JSON
  UnauthorizedError          401 unauthorized          no key, or a wrong one
  NotFoundError              404 not_found             no such path
    UnknownModelError        404 not_found             no such model
  BodyTooLargeError          413 body_too_large        refused before it is read whole
  InvalidFieldError          422 invalid_field         a field unknown, of the wrong type, out of its range, too long;
                                                       a ValueError too
  QueueFullError             429 queue_full            with `retry_after`, seconds
    MemoryFullError          429 queue_full            the requests under way hold as much memory as they may
  RateLimitError             429 rate_limited          over a limit of this client, with `retry_after`
  NotReadyError              503 not_ready             starting, or draining
  DeadlineError              504 deadline              passed before anything could be answered
StartError                   a deployment that cannot serve; exit code 1
CancelledError               the client left, or the submission was cancelled
"""

from __future__ import annotations


class ServiceError(Exception):
    status = 500
    type = "internal_error"

    def __init__(self, message: str, field: str | None = None) -> None:
        """A lone surrogate of a request, which no answer can have, is written as its escape."""
        message = message.encode("utf-8", "backslashreplace").decode()
        super().__init__(message)
        self.message, self.field = message, field


class InvalidJSONError(ServiceError):
    status, type = 400, "invalid_json"


class UnauthorizedError(ServiceError):
    status, type = 401, "unauthorized"


class NotFoundError(ServiceError):
    status, type = 404, "not_found"


class UnknownModelError(NotFoundError):
    pass


class BodyTooLargeError(ServiceError):
    status, type = 413, "body_too_large"


class InvalidFieldError(ServiceError, ValueError):
    status, type = 422, "invalid_field"


class QueueFullError(ServiceError):
    status, type = 429, "queue_full"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # whole seconds, at least 1


class RateLimitError(ServiceError):
    status, type = 429, "rate_limited"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # whole seconds, at least 1


class MemoryFullError(QueueFullError):
    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message, retry_after)


class NotReadyError(ServiceError):
    status, type = 503, "not_ready"


class NoNumbersError(ServiceError):
    """A log-probability is NaN: a kernel, the memory or the weights are at fault."""


class DeadlineError(ServiceError):
    status, type = 504, "deadline"


class CancelledError(Exception):
    pass


class StartError(Exception):
    exit_code = 1
