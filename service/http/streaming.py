"""Server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from attendant.service.http.guard.record import record_of
from attendant.service.http.submission import TaskStreams
from attendant.service.requests.content import Json, encode

EVENT_STREAM = "text/event-stream"
HEADERS = [
    (b"content-type", EVENT_STREAM.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # a proxy in between passes each event on at once
]


def stream_declaration(about: str, **events: Json) -> Json:
    """The OpenAPI declaration of an event stream: names of events, and schemas of their data, JSON in a string."""
    properties: Json = {"data": {"type": "string", "description": about}}
    if events:
        content = {"contentMediaType": "application/json", "contentSchema": {"anyOf": list(events.values())}}
        properties["data"] |= content
        properties["event"] = {"type": "string", "enum": list(events)}
    return {"content": {EVENT_STREAM: {"schema": {"type": "object", "required": ["data"], "properties": properties}}}}


def server_sent(name: str, data: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + encode(data) + b"\n\n"


def error_event(error: Json) -> bytes:
    return server_sent("error", error)


class EventStream(Response):
    """A streamed response. An error before the first chunk has its HTTP status; a later one is sent as an event."""

    def __init__(self, chunks: AsyncIterator[bytes], streams: TaskStreams, error: Callable[[Json], bytes]) -> None:
        super().__init__()
        self._chunks, self._streams, self._error = chunks, streams, error

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        try:
            begun = False
            async for chunk in self._chunks:
                if not begun:
                    record_of(scope).error_event = self._error
                    await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
                    begun = True
                if chunk:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._streams.close()
