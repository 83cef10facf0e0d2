"""What all connections of a server share, and a connection beyond as many as may be open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from attendant.service.http.guard.record import new_id
from attendant.service.http.wire.refusal import probed, refusal
from attendant.service.watch.logs import RareWarning

FOR_PROBES = 16  # connections beyond those that may be refused at a time, so that a probe gets through
REFUSAL_SECONDS = 1.0  # for which a connection is kept after its last answer, so that its client receives it

log = logging.getLogger("attendant")


@dataclass
class ConnectionLimits:
    """Shared by all connections of a server."""

    max_connections: int
    header_seconds: float
    send_seconds: float
    on_refused: Callable[[], None] = lambda: None  # for each connection over the limit
    ready: Callable[[], bool] = lambda: True  # what /readyz says
    refused: int = 0  # connections over the limit that are still open
    stopping: bool = False  # every answer is the last one of its connection
    over: RareWarning = field(default_factory=lambda: RareWarning(log, "connections are refused, as many are open"))
    malformed: RareWarning = field(default_factory=lambda: RareWarning(log, "what is no HTTP/1.1 was refused"))


class OverLimit(asyncio.Protocol):
    """A connection that is taken only to answer its first data, unparsed, and is closed a little later."""

    def __init__(self, limits: ConnectionLimits, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self._limits, self._loop, self._count = limits, loop, count  # connections that are open
        self._answered = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._limits.refused += 1
        self._limits.on_refused()
        self._limits.over.warn(open=self._count)
        if self._limits.refused > self._limits.max_connections + FOR_PROBES:
            transport.abort()
        else:
            self._loop.call_later(REFUSAL_SECONDS, self.data_received, b"")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._limits.refused -= 1

    def data_received(self, data: bytes) -> None:
        """Answer once, to whatever was sent first: probes as ever, 503 to all else."""
        if self._answered or self._transport.is_closing():
            return
        self._answered = True
        self._transport.write(self._answer(data))
        self._transport.write_eof()
        self._loop.call_later(REFUSAL_SECONDS, self._transport.close)

    def _answer(self, data: bytes) -> bytes:
        if data.startswith(b"GET /healthz "):
            return probed("ok")
        if data.startswith(b"GET /readyz "):
            if self._limits.ready():
                return probed("ready")
            return refusal(503, "not_ready", "The service is starting or stopping; try again later.", new_id())
        sentence = f"The service has {self._limits.max_connections} connections, as many as it takes; try again later."
        return refusal(503, "too_many_connections", sentence, new_id())
