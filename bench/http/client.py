"""HTTP/1.1 over a kept-alive connection, as little of it as a load generator needs.

An answer comes whole or in chunks; of one in chunks, the moment of the first `token` event is noted.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import cast

LARGEST_HEAD = 64 * 1024  # bytes
FIRST_TOKEN = b"event: token"


class ProtocolError(Exception):
    """The server closed the connection too early, or does not speak HTTP/1.1."""


@dataclass
class Response:
    status: int
    body: bytes
    first_token: float | None  # time.perf_counter() of the first token event
    fields: dict[bytes, bytes] = field(default_factory=dict)  # of the head, their names in lower case


class Connection(asyncio.Protocol):
    """One connection with at most one request under way."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Response] | None = None
        self._reset()

    @classmethod
    async def open(cls, host: str, port: int) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        return connection

    async def request(self, raw: bytes) -> Response:
        """Send a whole request; wait for the whole answer."""
        if self._transport is None or self._transport.is_closing():
            raise ProtocolError("the connection is closed")
        self._reset()
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(raw)
        return await self._waiter

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _reset(self) -> None:
        self._buffer = bytearray()
        self._status = 0  # 0 while the head is not complete
        self._left: int | None = None  # bytes of the body that are to come; None: it comes in chunks
        self._body = bytearray()
        self._fields: dict[bytes, bytes] = {}
        self._first_token: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def connection_lost(self, _: Exception | None) -> None:
        self._fail("the server closed the connection before it had answered")

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            if not self._status and not self._read_head():
                return
            whole = self._read_chunks() if self._left is None else self._read_rest()
        except (ValueError, IndexError) as error:
            self._fail(f"the answer is not HTTP/1.1: {error}")
            self.close()
            return
        if self._first_token is None and FIRST_TOKEN in self._body:
            self._first_token = time.perf_counter()
        if whole and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(Response(self._status, bytes(self._body), self._first_token, self._fields))

    def _fail(self, sentence: str) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ProtocolError(sentence))

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > LARGEST_HEAD:
                raise ValueError("its head does not end")
            return False
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        version, status = lines[0].split(b" ", 2)[:2]
        if not version.startswith(b"HTTP/1."):
            raise ValueError(f"it begins with {version!r}")
        self._fields = fields = {
            name.lower(): value.strip() for name, value in (line.split(b":", 1) for line in lines[1:])
        }
        self._status = int(status)
        if fields.get(b"transfer-encoding", b"").lower() != b"chunked":
            self._left = int(fields.get(b"content-length", b"0"))
        return True

    def _read_rest(self) -> bool:
        assert self._left is not None
        taken = self._buffer[: self._left]
        del self._buffer[: len(taken)]
        self._body += taken
        self._left -= len(taken)
        return self._left == 0

    def _read_chunks(self) -> bool:
        """Whether the last chunk has come."""
        while True:
            end = self._buffer.find(b"\r\n")
            if end < 0:
                return False
            size = int(bytes(self._buffer[:end]).split(b";")[0], 16)
            if len(self._buffer) < end + 2 + size + 2:
                return False
            self._body += self._buffer[end + 2 : end + 2 + size]
            del self._buffer[: end + 2 + size + 2]
            if size == 0:
                return True


def post(path: str, host: str, port: int, body: bytes, more: str = "") -> bytes:
    """A whole request; `more`: further lines of its head, each with its end."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{more}\r\n"
    )
    return head.encode() + body


def get(path: str, host: str, port: int) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
