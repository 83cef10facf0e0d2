"""A case: the bytes that a client sends, the paragraph of the RFC that they are about, and what may be answered.

An outcome is written as the statuses of all answers in order, then how the connection ended:

    200 end     200, and the connection stays open: the request END that is sent behind the case was answered
    400         400, and the connection was closed
    100 200 end the interim answer, the final one, and open
    open        nothing came, and the connection was not closed within the time

Alternatives are separated by `|`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from bench.reliability.conformance.answers import Answer

MUST, SHOULD, MAY, OWN = "MUST", "SHOULD", "MAY", "own"  # OWN: the RFC leaves it open, and the documentation does not
REFUSED = "400|501|431|505"
BODY = json.dumps({"inputs": "facade"}).encode()
LENGTH = b"Content-Length: %d" % len(BODY)
HOST = b"Host: x"
CHUNKED = b"Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"  # 404 if it is taken for a request
END_PATH = b"/the-end-of-the-case"
END = b"GET " + END_PATH + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

Check = Callable[[list[Answer]], str]  # the fault that it finds in the answers, or nothing


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    section: str  # "9112 3.2": the RFC and its paragraph
    level: str
    sent: tuple[bytes, ...]  # parts, each sent after a pause
    allowed: str  # outcomes
    behind: str = ""  # outcomes behind nginx, where it does more or less than the service; "-": not sent through it
    end: bool = True  # END is sent behind the case
    methods: tuple[bytes, ...] = ()  # of the requests, where an answer cannot be read without them (HEAD)
    check: Check | None = None
    known: str = ""  # why the outcome is another one, where that is known and left so


def request(
    *lines: bytes, body: bytes = b"", method: bytes = b"GET", target: bytes = b"/healthz", version: bytes = b"HTTP/1.1"
) -> bytes:
    """A request with one good Host."""
    return plain(HOST, *lines, body=body, method=method, target=target, version=version)


def plain(
    *lines: bytes, body: bytes = b"", method: bytes = b"GET", target: bytes = b"/healthz", version: bytes = b"HTTP/1.1"
) -> bytes:
    """A request with these header lines alone."""
    return b"\r\n".join([b" ".join((method, target, version)), *lines, b"", b""]) + body


def post(*lines: bytes, body: bytes = BODY, version: bytes = b"HTTP/1.1") -> bytes:
    """A request with a body, whose framing is for the lines to say."""
    return request(*lines, body=body, method=b"POST", target=b"/v1/generate", version=version)


def case(name: str, section: str, level: str, sent: bytes | tuple[bytes, ...], allowed: str, **more: object) -> Case:
    parts = (sent,) if isinstance(sent, bytes) else sent
    return Case(name=name, section=section, level=level, sent=parts, allowed=allowed, **more)  # type: ignore[arg-type]
