"""How long an answer may stay unread: a connection ends when its client has taken nothing of it for a while."""

from __future__ import annotations

import asyncio
import struct
import sys

CHECKS = 4  # in the time that a client may stand still

if sys.platform != "win32":
    import fcntl
    import termios


class SendTimer:
    """Aborts the connection if the client takes nothing for `seconds`; whatever it takes begins the time anew."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, seconds: float) -> None:
        self._loop, self._transport, self._seconds = loop, transport, seconds
        self._timer: asyncio.TimerHandle | None = None
        self._unread = 0
        self._progress = 0.0  # when it was last made, in the loop's time

    def start(self) -> None:
        """Without effect where it runs already."""
        if self._timer is None:
            self._unread, self._progress = unread_bytes(self._transport), self._loop.time()
            self._timer = self._loop.call_later(self._seconds / CHECKS, self._check)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        unread, now = unread_bytes(self._transport), self._loop.time()
        if unread != self._unread:
            self._unread, self._progress = unread, now
        if now - self._progress >= self._seconds:
            self._timer = None
            self._transport.abort()
        else:
            self._timer = self._loop.call_later(self._seconds / CHECKS, self._check)


def unread_bytes(transport: asyncio.Transport) -> int:
    """Bytes that the other side has not received: those of the process and, where it tells, of the system.

    The system lets a process write again only when a third of its own buffer is free, which a slow client takes long
    to read.
    """
    return transport.get_write_buffer_size() + _bytes_in_system(transport)


def _bytes_in_system(transport: asyncio.Transport) -> int:
    connection = transport.get_extra_info("socket")
    if connection is None or sys.platform == "win32":
        return 0
    try:
        (count,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))
    except OSError:  # closed, or a system that does not tell
        return 0
    return int(count)
