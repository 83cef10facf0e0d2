"""A response's head and its body leave together: one system call here, and one wake-up of the client."""

from __future__ import annotations

import asyncio
from typing import Any


class JoinedWrites:
    """A transport that keeps what is written until the next write, or until the event loop has its turn again."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop, self._transport = loop, transport
        self._kept: bytes = b""
        self._due: bool = False  # whether `_flush` will be called

    def write(self, data: bytes) -> None:
        if self._kept:
            self._kept = b"".join((self._kept, data))
            self._send()
            return
        self._kept = data
        if not self._due:
            self._due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._due = False
        self._send()

    def _send(self) -> None:
        kept, self._kept = self._kept, b""
        if kept and not self._transport.is_closing():  # the client may have gone meanwhile
            self._transport.write(kept)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def write_eof(self) -> None:
        self._send()
        self._transport.write_eof()

    def abort(self) -> None:
        self._kept = b""
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        return len(self._kept) + self._transport.get_write_buffer_size()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
