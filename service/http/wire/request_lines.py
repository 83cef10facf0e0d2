"""The lines of a request: what is refused although the parser takes it, and what the parser should see instead."""

from __future__ import annotations

import re

VERSIONS = ("1.0", "1.1")
LONGEST_TARGET = 2**16 - 1  # bytes that the parser of targets takes
HOST = rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+;=%-]+)(?::[0-9]*)?"  # and a port
TARGET = re.compile(rb"(?:/|https?://" + HOST + rb"(?=[/?]|$))[^#]*", re.IGNORECASE)
NO_PATH = re.compile(rb"^(https?://[^/?#]+)(?=\?|$)", re.IGNORECASE)
OFFERS = (b"upgrade", b"http2-settings")  # headers, and members of Connection, that offer another protocol


class RequestLineError(Exception):
    """With the status, the type and the message of the answer."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message


def check_request_line(method: bytes, target: bytes, version: str) -> None:
    if version not in VERSIONS:
        raise RequestLineError(505, "unsupported_version", f"HTTP/{version} is not spoken here; send HTTP/1.1.")
    if len(target) > LONGEST_TARGET:
        raise RequestLineError(431, "headers_too_large", f"The path is too long: at most {LONGEST_TARGET} bytes.")
    if TARGET.fullmatch(target) is None and (method, target) != (b"OPTIONS", b"*"):
        shown = ascii(target[:100].decode("latin-1"))
        raise RequestLineError(400, "invalid_http", f"A request is for a path, as /v1/generate, not for {shown}.")


def with_path(target: bytes) -> bytes:
    """The target; one in absolute form that has no path, as `http://host?query`, means the path `/`."""
    return NO_PATH.sub(rb"\1/", target)


def without_offers(headers: list[tuple[bytes, bytes]]) -> list[bytes]:
    """The header lines, without what offers another protocol."""
    lines = []
    for name, value in headers:
        if name == b"connection":
            members = [member.strip() for member in value.split(b",")]
            value = b", ".join(member for member in members if member.lower() not in OFFERS)
        if name not in OFFERS and (value or name != b"connection"):
            lines.append(name + b": " + value)
    return lines
