"""A connection: uvicorn's protocol on httptools, with bounds on headers, trailers, time and number of connections.

A client may offer to upgrade to another protocol (Java's and curl's do, `Upgrade: h2c`). HTTP lets a server ignore the
offer, as this one does: the request is read as any other.

It overrides parts of uvicorn that are not public, so uvicorn's minor version is capped in pyproject.toml.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

LARGEST_HEADERS = 256 * 2**10  # bytes that the parser takes; the middleware has a lower limit, and a better message
REFUSAL_SECONDS = 1.0  # for which a connection over the limit is kept, so that its client receives the answer
OFFERS = (b"upgrade", b"http2-settings")  # headers, and members of Connection, that offer another protocol
WARNING_SECONDS = 10.0  # between two log lines about refused connections

log = logging.getLogger("attendant")


@dataclass
class ConnectionLimits:
    """Shared by all connections of a server."""

    max_connections: int
    header_seconds: float
    send_seconds: float
    on_refused: Callable[[], None] = lambda: None  # for each connection over the limit
    refused: int = 0  # connections over the limit that are still open
    warned: float = float("-inf")  # when it was last logged, by time.monotonic()


def protocol_class(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    class LimitedProtocol(BoundedProtocol):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.limits = limits

    return LimitedProtocol


class BoundedProtocol(HttpToolsProtocol):
    limits: ConnectionLimits

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._data = b""  # being parsed
        self._again = b""  # a request without its upgrade offer, and the data after it, to be parsed again
        self._in_headers = self._in_body = False
        self._body_arrived = False  # in the data that is being parsed
        self._header_bytes = 0  # received of headers or trailers that are not complete
        self._header_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None  # while the client does not read
        self._running: RequestResponseCycle | None = None  # with pipelining, `cycle` is a later one
        self._refused = self._answered = False  # over the limit; and answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.limits.max_connections:
            self._refuse(transport)
            return
        super().connection_made(transport)
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self._stop_send_timer()
        if self._refused:
            self.limits.refused -= 1
            return
        super().connection_lost(exc)
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._send_timer = self.loop.call_later(self.limits.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_send_timer()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._answer_refused(data)
            return
        self._body_arrived, self._again = False, data
        while self._again:
            self._data, self._again = self._again, b""
            super().data_received(self._data)
        if self.transport.is_closing():
            return
        trailers = self._in_body and not self._body_arrived  # or the chunk sizes of a chunked body, which are short
        self._header_bytes = self._header_bytes + len(data) if self._in_headers or trailers else 0
        if self._header_bytes > LARGEST_HEADERS:
            self._answer(431, "headers_too_large", "The headers or trailers are too large.")
        elif self._header_timer is None and (self._in_headers or self._is_idle()):
            self._start_header_timer()

    def on_message_begin(self) -> None:
        self._in_headers = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:  # trailers are dropped: they come after the request was authorized
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():  # read again without the offer
            return
        self._in_headers, self._in_body = False, True
        self._stop_header_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_arrived = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._in_body = False
        super().on_message_complete()

    def _should_upgrade(self) -> bool:
        return False

    def _unsupported_upgrade_warning(self) -> None:
        """uvicorn calls this when the parser has stopped at an upgrade offer: parse the request again without it."""
        stopped = sys.exception()
        assert isinstance(stopped, httptools.HttpParserUpgrade)
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self.send_400_response("CONNECT is for proxies.")
            return
        lines = [b"%s %s HTTP/%s" % (method, self.url, version), *_without_offers(self.headers), b"", b""]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self._again = b"\r\n".join(lines) + self._data[stopped.args[0] :]

    def send_400_response(self, msg: str) -> None:
        self._answer(400, "invalid_http", f"{msg.removesuffix('.')}; send a request of HTTP/1.1.")

    def on_response_complete(self) -> None:
        answered = self._running  # before the next one, which may be pipelined, takes its place
        super().on_response_complete()
        if self._in_body and self.cycle is answered:  # the rest of a refused body is not waited for
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _is_idle(self) -> bool:
        return not self._in_body and (self.cycle is None or self.cycle.response_complete)

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self.limits.header_seconds, self._on_header_timeout)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _on_header_timeout(self) -> None:
        self._header_timer = None
        if self.cycle is not None and not self.cycle.response_complete:  # pipelined: one before it is being answered
            self._start_header_timer()
        elif self._in_headers:
            seconds = self.limits.header_seconds
            self._answer(408, "header_timeout", f"The headers were not sent within {seconds:g} s; send them faster.")
        else:
            self.transport.close()

    def _refuse(self, transport: asyncio.Transport) -> None:
        """Take a connection over the limit only to answer its first data, unparsed, and to close it a little later."""
        self.transport, self._refused = transport, True
        self.limits.refused += 1
        self.limits.on_refused()
        now = time.monotonic()
        if now - self.limits.warned >= WARNING_SECONDS:
            self.limits.warned = now
            log.warning("connections are refused: %d are open, as many as may be", len(self.connections))
        if self.limits.refused > self.limits.max_connections:
            transport.abort()
            return
        self.loop.call_later(REFUSAL_SECONDS, self._answer_refused, b"")

    def _answer_refused(self, data: bytes) -> None:
        """Answer once, to whatever was sent first: 200 to the liveness probe, 503 to all else."""
        if self._answered or self.transport.is_closing():
            return
        self._answered = True
        sentence = f"The service has {self.limits.max_connections} connections, as many as it takes; try again later."
        refusal = _response(503, "too_many_connections", sentence)
        self.transport.write(ALIVE if data.startswith(b"GET /healthz ") else refusal)
        self.transport.write_eof()
        self.loop.call_later(REFUSAL_SECONDS, self.transport.close)

    def _answer(self, status: int, kind: str, message: str) -> None:
        """Answer, unless a response has already begun, and close the connection."""
        if self._running is None or self._running.response_complete or not self._running.response_started:
            self.transport.write(_response(status, kind, message))
        self.transport.close()


def _without_offers(headers: list[tuple[bytes, bytes]]) -> list[bytes]:
    """The header lines, without what offers another protocol."""
    lines = []
    for name, value in headers:
        if name == b"connection":
            members = [member.strip() for member in value.split(b",")]
            value = b", ".join(member for member in members if member.lower() not in OFFERS)
        if name not in OFFERS and (value or name != b"connection"):
            lines.append(name + b": " + value)
    return lines


def _response(status: int, kind: str, message: str) -> bytes:
    content = json.dumps({"error": {"type": kind, "message": message, "field": None}}).encode() + b"\n"
    headers = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(content)
    headers += b"retry-after: 1\r\n\r\n" if status == 503 else b"\r\n"
    return STATUS_LINE[status] + headers + content


ALIVE = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{"status":"ok"}\n'
