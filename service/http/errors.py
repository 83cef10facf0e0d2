"""Errors of HTTP alone; each is counted in the metrics as its parent.

InvalidJSONError
  BodyTimeoutError          408 body_timeout          the body was not sent in time
  UnsupportedEncodingError  415 unsupported_encoding  a Content-Encoding that is not read here
  InvalidHTTPError          400 invalid_http          a header that is missing, doubled or malformed
  UnsupportedTransferError  501 unsupported_transfer_encoding
UnauthorizedError
  ForbiddenError            403 forbidden             a key that may not do this
NotFoundError
  MethodNotAllowedError     405 method_not_allowed    with `allow`, the methods of the path
BodyTooLargeError
  HeadersTooLargeError      431 headers_too_large
"""

from __future__ import annotations

from attendant.service.errors import BodyTooLargeError, InvalidJSONError, NotFoundError, UnauthorizedError


class BodyTimeoutError(InvalidJSONError):
    status, type = 408, "body_timeout"


class UnsupportedEncodingError(InvalidJSONError):
    status, type = 415, "unsupported_encoding"


class InvalidHTTPError(InvalidJSONError):
    status, type = 400, "invalid_http"


class UnsupportedTransferError(InvalidJSONError):
    status, type = 501, "unsupported_transfer_encoding"


class ForbiddenError(UnauthorizedError):
    status, type = 403, "forbidden"


class MethodNotAllowedError(NotFoundError):
    status, type = 405, "method_not_allowed"

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow  # methods, comma-separated


class HeadersTooLargeError(BodyTooLargeError):
    status, type = 431, "headers_too_large"
