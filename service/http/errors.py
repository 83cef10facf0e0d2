"""Errors of HTTP alone; each is counted in the metrics as its parent.

InvalidJSONError
  BodyTimeoutError          408 body_timeout          the body was not sent in time
  UnsupportedEncodingError  415 unsupported_encoding  a Content-Encoding that is not read here
UnauthorizedError
  ForbiddenError            403 forbidden             a key that may not do this
NotFoundError
  UnknownModelError         404 not_found             no such model
  MethodNotAllowedError     405 method_not_allowed    with `allow`, the methods of the path
BodyTooLargeError
  HeadersTooLargeError      431 headers_too_large
"""

from __future__ import annotations

from service.errors import BodyTooLargeError, InvalidJSONError, NotFoundError, UnauthorizedError


class BodyTimeoutError(InvalidJSONError):
    status, type = 408, "body_timeout"


class UnsupportedEncodingError(InvalidJSONError):
    status, type = 415, "unsupported_encoding"


class ForbiddenError(UnauthorizedError):
    status, type = 403, "forbidden"


class UnknownModelError(NotFoundError):
    pass


class MethodNotAllowedError(NotFoundError):
    status, type = 405, "method_not_allowed"

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow  # methods, comma-separated


class HeadersTooLargeError(BodyTooLargeError):
    status, type = 431, "headers_too_large"
