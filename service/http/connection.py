"""A connection: uvicorn's protocol on httptools, with bounds on headers, trailers, time and number of connections.

A client may offer to upgrade to another protocol (Java's and curl's do, `Upgrade: h2c`). HTTP lets a server ignore the
offer, as this one does: the request is read as any other.

Where the parser stops at what is no HTTP, nothing more is read: the requests before it are answered, in order, then it
is told so, and the connection ends.

It rests on parts of uvicorn that are not public, listed in OVERRIDDEN, CALLED, READ and READ_OF_CYCLE. A uvicorn that
has moved a method is refused at the start: a bound would silently be gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from attendant.service.errors import StartError
from attendant.service.http.guard.record import ANSWER_LEFT, WATCH_DISCONNECT, new_id
from attendant.service.http.wire.joined import JoinedWrites
from attendant.service.http.wire.limits import REFUSAL_SECONDS, ConnectionLimits, OverLimit
from attendant.service.http.wire.refusal import refusal
from attendant.service.http.wire.request_lines import RequestLineError, check_request_line, with_path, without_offers
from attendant.service.http.wire.sending import SendTimer

LARGEST_HEADERS = 256 * 2**10  # bytes that the parser takes; the middleware has a lower limit, and a better message
REFUSAL_BYTES = 2**20  # of what a client still sends after its last answer are dropped before it is cut off
FIRST_SECONDS = 0.5  # at a stop, for a new connection to send its request,
NEXT_SECONDS = 0.05  # and for what a kept one has sent to be read

# Of uvicorn's HttpToolsProtocol: methods with their parameters, and attributes. Of its cycle: attributes.
OVERRIDDEN = {
    "connection_made": ["transport"],
    "connection_lost": ["exc"],
    "pause_writing": [],
    "resume_writing": [],
    "data_received": ["data"],
    "on_message_begin": [],
    "on_header": ["name", "value"],
    "on_headers_complete": [],
    "on_body": ["body"],
    "on_message_complete": [],
    "on_response_complete": [],
    "shutdown": [],
    "timeout_keep_alive_handler": [],
    "_start_asgi_task": ["cycle", "app"],
}
CALLED = ("_unset_keepalive_if_required",)
READ = (
    *(
        "connections",
        "cycle",
        "expect_100_continue",
        "flow",
        "headers",
        "loop",
        "parser",
        "pipeline",
        "transport",
        "url",
    ),
    *("timeout_keep_alive", "timeout_keep_alive_task"),
)
READ_OF_CYCLE = (
    *("disconnected", "keep_alive", "message_event", "more_body"),
    *("response_complete", "response_started", "scope", "waiting_for_100_continue"),
)

WRITE_PAUSES = 64 * 2**10  # bytes of answers in the process above which the application waits, until all have left


def protocol_class(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    check_uvicorn(HttpToolsProtocol)

    class LimitedProtocol(BoundedProtocol):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.limits = limits

    return LimitedProtocol


def make_protocol(server: uvicorn.Server) -> asyncio.Protocol:
    """As uvicorn makes one for each connection that it accepts."""
    config, state = server.config, server.server_state
    create: Any = config.http_protocol_class
    made: asyncio.Protocol = create(config=config, server_state=state, app_state=server.lifespan.state)
    return made


def check_uvicorn(protocol: type) -> None:
    """StartError if uvicorn's protocol lacks a method that is overridden here."""
    if moved := sorted(name for name in (*OVERRIDDEN, *CALLED) if not hasattr(protocol, name)):
        raise StartError(
            f"uvicorn {uvicorn.__version__} has no {', '.join(moved)}, on which the bounds of connections rest; "
            "install another version of uvicorn, or a newer attendant-transformer."
        )


class BoundedProtocol(HttpToolsProtocol):
    limits: ConnectionLimits

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._in_headers = self._in_body = False
        self._body_arrived = False  # in the data that is being parsed
        self._header_bytes = 0  # received of headers or trailers that are not complete
        self._header_timer: asyncio.TimerHandle | None = None
        self._send_timer: SendTimer | None = None  # once connected
        self._left: asyncio.Future[bool] | None = None  # while writing is paused: whether what was written has left
        self._running: RequestResponseCycle | None = None  # with pipelining, `cycle` is a later one
        self._watchers: list[Callable[[], None]] = []  # to call when the connection ends before that is answered
        self._last_answer: bytes | None = None  # nothing is parsed any more; sent when all before it is answered
        self._answered = False  # it was sent
        self._dropped = 0  # bytes that came after that

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.limits.max_connections:
            over = OverLimit(self.limits, self.loop, len(self.connections))
            transport.set_protocol(over)
            over.connection_made(transport)
            return
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, JoinedWrites(self.loop, transport))
        transport.set_write_buffer_limits(high=WRITE_PAUSES, low=0)
        self._send_timer = SendTimer(self.loop, transport, self.limits.send_seconds)
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self._end_pause(left=False)
        super().connection_lost(exc)
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        for on_disconnect in [*self._watchers]:
            on_disconnect()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._left = self.loop.create_future()
        self._start_send_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_pause(left=True)

    def shutdown(self) -> None:
        """At a stop: the connection ends with the answer to what is on its way; if nothing is, a moment later."""
        if self.cycle is not None and not self.cycle.response_complete:
            super().shutdown()
        else:
            self.loop.call_later(FIRST_SECONDS if self.cycle is None else NEXT_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self._is_idle() and not self._in_headers:
            self._close()

    def timeout_keep_alive_handler(self) -> None:
        if self._left is None:
            super().timeout_keep_alive_handler()
            self._watch_last_bytes()
        else:  # not idle: its answer is being read
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._body_arrived, rest = False, data
        while rest and self._last_answer is None:
            rest = self._parse(rest)
        if self._last_answer is not None:
            self._drop(data)
            return
        if self.transport.is_closing():
            return
        trailers = self._in_body and not self._body_arrived  # or the chunk sizes of a chunked body, which are short
        self._header_bytes = self._header_bytes + len(data) if self._in_headers or trailers else 0
        if self._header_bytes > LARGEST_HEADERS:
            self._refuse_rest(431, "headers_too_large", "The headers or trailers are too large.")
        elif self._header_timer is None and (self._in_headers or self._is_idle()):
            self._start_header_timer()

    def _parse(self, data: bytes) -> bytes:
        """Parse; returns what is to be parsed again: a request without its upgrade offer, and the data after it."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as stopped:
            return self._without_offer(data[stopped.args[0] :])
        except httptools.HttpParserError as error:
            found = error.__context__  # what a callback has raised
            if isinstance(found, RequestLineError):
                self._refuse_rest(found.status, found.kind, found.message)
            else:
                self._refuse_malformed("What was sent cannot be parsed")
        return b""

    def on_message_begin(self) -> None:
        self._in_headers = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:  # trailers are dropped: they come after the request was authorized
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():  # read again without the offer
            return
        version = self.parser.get_http_version()
        check_request_line(self.parser.get_method(), self.url, version)
        if version == "1.0":  # whose clients do not know the answer 100
            self.expect_100_continue = False
        self.url = with_path(self.url)
        super().on_headers_complete()
        self._in_headers, self._in_body = False, True
        self._stop_header_timer()
        if self.limits.stopping:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._body_arrived = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._in_body = False
        super().on_message_complete()

    def _without_offer(self, rest: bytes) -> bytes:
        """The request at whose upgrade offer the parser has stopped, without the offer, and the rest of the data."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self._refuse_malformed("CONNECT is for proxies")
            return b""
        lines = [b"%s %s HTTP/%s" % (method, self.url, version), *without_offers(self.headers), b"", b""]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        return b"\r\n".join(lines) + rest

    def on_response_complete(self) -> None:
        answered = self._running  # before the next one, which may be pipelined, takes its place
        super().on_response_complete()
        if self._in_body and self.cycle is answered:  # the rest of a refused body is not waited for
            self.transport.close()
        self._send_last_answer()
        self._watch_last_bytes()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        cycle.scope[ANSWER_LEFT] = partial(self._answer_left, cycle)  # type: ignore[literal-required]
        cycle.scope[WATCH_DISCONNECT] = self._watch_disconnect  # type: ignore[literal-required]
        super()._start_asgi_task(cycle, app)

    def _watch_disconnect(self, on_disconnect: Callable[[], None]) -> Callable[[], None]:
        """Call `on_disconnect` if the connection ends, until what is returned is called."""
        if self.transport.is_closing():
            return self.loop.call_soon(on_disconnect).cancel
        self._watchers.append(on_disconnect)
        return partial(self._watchers.remove, on_disconnect)

    async def _answer_left(self, cycle: RequestResponseCycle) -> bool:
        """Waits until the answer has been handed to the system; False if the connection ended before."""
        if cycle.disconnected or self._left is None:
            return not cycle.disconnected
        left = self._left
        await asyncio.wait([left])  # and not the future itself, which other requests wait for, too
        return left.result()

    def _is_idle(self) -> bool:
        return not self._in_body and (self.cycle is None or self.cycle.response_complete)

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self.limits.header_seconds, self._on_header_timeout)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _start_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.start()

    def _watch_last_bytes(self) -> None:
        """What a closed connection still has to send is waited for as long as for any answer."""
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._start_send_timer()

    def _end_pause(self, left: bool) -> None:
        if self._send_timer is not None:
            self._send_timer.stop()
        if self._left is not None:
            self._left.set_result(left)
            self._left = None

    def _on_header_timeout(self) -> None:
        self._header_timer = None
        if self.cycle is not None and not self.cycle.response_complete:  # pipelined: one before it is being answered
            self._start_header_timer()
        elif self._in_headers:
            seconds = self.limits.header_seconds
            sentence = f"The headers were not sent within {seconds:g} s; send them faster."
            self._refuse_rest(408, "header_timeout", sentence)
        else:
            self.transport.close()

    def _refuse_malformed(self, reason: str) -> None:
        request_id = self._refuse_rest(400, "invalid_http", f"{reason}; send a request of HTTP/1.1.")
        self.limits.malformed.warn(id=request_id)

    def _refuse_rest(self, status: int, kind: str, message: str) -> str:
        """Parse no further; answer all before, then this, and end the connection. Returns the answer's id."""
        request_id = new_id()
        self._last_answer = refusal(status, kind, message, request_id)
        self._stop_header_timer()
        if self._in_body:
            self._drop_broken()
        self._send_last_answer()
        return request_id

    def _drop_broken(self) -> None:
        """The request that is being parsed does not go on: the last answer is its own, unless it has one already."""
        self._in_body, broken = False, self.cycle
        if self.pipeline and self.pipeline[0][0] is broken:  # not begun
            self.pipeline.popleft()
            assert self._running is not None
            self.cycle = self.pipeline[0][0] if self.pipeline else self._running
            return
        if broken.response_started:
            self._last_answer, broken.more_body = b"", False
        else:
            broken.disconnected = True
        broken.waiting_for_100_continue = False  # nothing may be written behind the last answer
        broken.message_event.set()

    def _send_last_answer(self) -> None:
        """If it is its turn; then end the connection, gently: closing on a client that still sends would lose it."""
        running = self._running
        answering = running is not None and not running.response_complete and not running.disconnected
        if self._last_answer is None or answering or self._answered or self.transport.is_closing():
            return
        self._answered = True
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        self.transport.write(self._last_answer)
        self.transport.write_eof()
        self.loop.call_later(REFUSAL_SECONDS, self._close)

    def _drop(self, data: bytes) -> None:
        """What comes after the last answer, up to a limit."""
        self._dropped += len(data) if self._answered else 0
        if self._dropped > REFUSAL_BYTES:
            self._close()

    def _close(self) -> None:
        self.transport.close()
        self._watch_last_bytes()
