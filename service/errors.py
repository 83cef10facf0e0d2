"""What can go wrong, as a tree; each class carries its HTTP status and its type, each error a sentence.

ServiceError                 500 internal_error
  InvalidJSONError           400 invalid_json          the body is not JSON
    BodyTimeoutError         408 body_timeout          the body was not sent in time
    UnsupportedEncodingError 415 unsupported_encoding  a Content-Encoding that is not read here
  UnauthorizedError          401 unauthorized          no key, or a wrong one
    ForbiddenError           403 forbidden             a key that may not do this
  NotFoundError              404 not_found             no such path
    UnknownModelError        404 not_found             no such model
    MethodNotAllowedError    405 method_not_allowed    with `allow`, the methods of the path
  BodyTooLargeError          413 body_too_large        refused before it is read whole
    HeadersTooLargeError     431 headers_too_large
  InvalidFieldError          422 invalid_field         a field unknown, of the wrong type, out of its range, too long
  QueueFullError             429 queue_full            with `retry_after`, seconds
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
        super().__init__(message)
        self.message, self.field = message, field


class InvalidJSONError(ServiceError):
    status, type = 400, "invalid_json"


class BodyTimeoutError(InvalidJSONError):
    status, type = 408, "body_timeout"


class UnsupportedEncodingError(InvalidJSONError):
    status, type = 415, "unsupported_encoding"


class UnauthorizedError(ServiceError):
    status, type = 401, "unauthorized"


class ForbiddenError(UnauthorizedError):
    status, type = 403, "forbidden"


class NotFoundError(ServiceError):
    status, type = 404, "not_found"


class UnknownModelError(NotFoundError):
    pass


class MethodNotAllowedError(NotFoundError):
    status, type = 405, "method_not_allowed"

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow  # methods, comma-separated


class BodyTooLargeError(ServiceError):
    status, type = 413, "body_too_large"


class HeadersTooLargeError(BodyTooLargeError):
    status, type = 431, "headers_too_large"


class InvalidFieldError(ServiceError):
    status, type = 422, "invalid_field"


class QueueFullError(ServiceError):
    status, type = 429, "queue_full"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # whole seconds, at least 1


class NotReadyError(ServiceError):
    status, type = 503, "not_ready"


class DeadlineError(ServiceError):
    status, type = 504, "deadline"


class CancelledError(Exception):
    pass


class StartError(Exception):
    exit_code = 1
