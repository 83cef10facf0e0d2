"""Answers of a connection itself, where no request reaches the application: bytes, with a request id of their own."""

from __future__ import annotations

import http
import json
from email.utils import formatdate

from attendant.service.http.guard.record import new_id


def refusal(status: int, kind: str, message: str, request_id: str) -> bytes:
    """An error in the documented form; the connection ends with it."""
    content = json.dumps({"error": {"type": kind, "message": message, "field": None}}).encode() + b"\n"
    return _answer(status, content, request_id, b"retry-after: 1\r\n" if status == 503 else b"")


def probed(status: str) -> bytes:
    """The answer to a probe."""
    return _answer(200, b'{"status":"%s"}\n' % status.encode(), new_id())


def _answer(status: int, content: bytes, request_id: str, more: bytes = b"") -> bytes:
    line = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\nx-request-id: {request_id}\r\n".encode()
    date = formatdate(usegmt=True).encode()  # which 2xx and 4xx must have (RFC 9110, 6.6.1)
    headers = b"date: %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n"
    headers %= (date, len(content))
    return line + headers + more + b"\r\n" + content
