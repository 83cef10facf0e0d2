"""A request's body, read whole within limits of size and time, and decompressed.

What is too large is refused before it is read whole.
"""

from __future__ import annotations

import asyncio
import zlib
from contextlib import suppress

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from attendant.service.errors import BodyTooLargeError, InvalidJSONError
from attendant.service.http.errors import BodyTimeoutError, UnsupportedEncodingError
from attendant.service.http.guard.record import WATCH_DISCONNECT
from attendant.service.memory import Holding

JSON_LENGTH = b"inference-header-content-length"  # bytes of JSON, where binary tensors follow it (V2)
HEADERS = (b"content-length", b"content-encoding", b"transfer-encoding", JSON_LENGTH)
COMPRESSED = (b"gzip", b"x-gzip", b"deflate")
ANY_ZLIB_FORMAT = 47  # zlib's `wbits` for gzip or deflate, whichever it is
MOST_MEMBERS = 100  # of a gzip body: each takes time, however small it is
LONGEST_LENGTH = 18  # digits of a Content-Length; a longer one is refused unparsed
LARGEST_RATIO = 1032  # bytes that one of deflate can become
INFLATE_BYTES = 64 * 2**10  # memory of a decompressor
PARSING = 31  # bytes held for each of a body while it is parsed: itself, and at worst empty lists and tables
PARSED = 11  # and of the request that it has become: at worst short texts
LINGER_SECONDS = 2.0  # a refused body is read and dropped for so long,
LINGER_BYTES = 256 * 2**20  # and up to this size, so that its sender receives the answer


class Body:
    """Reads and checks a request's body; afterwards it is the ASGI `receive` of the application."""

    def __init__(self, scope: Scope, receive: Receive, limit: int, seconds: float, memory: Holding) -> None:
        self._receive, self._seconds, self._memory = receive, seconds, memory
        self.watch_disconnect = scope.get(WATCH_DISCONNECT)  # None: of another server, which tells it by `receive`
        self._limit = min(limit, memory.capacity // PARSING)
        headers = {name: value for name, value in scope["headers"] if name in HEADERS}
        self._declared = headers.get(b"content-length", b"")
        self._encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        self._expected = bool(self._declared.strip(b"0")) or b"transfer-encoding" in headers
        self._has_tensors = JSON_LENGTH in headers
        self._inflate = zlib.decompressobj(wbits=ANY_ZLIB_FORMAT) if self._encoding in COMPRESSED else None
        self._members = 1  # of gzip
        self.size = 0  # bytes received
        self._length = 0  # bytes after decompression
        self._read_bytes = 0  # of the whole body
        self._ended = False
        self._content: bytes | None = None  # read, and not handed on yet

    async def read(self) -> None:
        """Read the whole body, or refuse it, by its headers alone if they suffice."""
        self._check()
        if not self._expected:
            return
        try:
            async with asyncio.timeout(self._seconds):
                content = await self._read()
                self._content = content if self._has_tensors else utf8(content)
                self._read_bytes = len(self._content)
                self._memory.set("body", PARSING * self._read_bytes)
        except TimeoutError:
            self._expected = False  # so that `drop` does not wait for the rest
            raise BodyTimeoutError(
                f"The body was not sent within {self._seconds:g} s; send it faster, or in smaller requests."
            ) from None

    async def __call__(self) -> Message:
        """The whole body, then what comes after it: the client's disconnect."""
        if self._content is None:
            return await self._receive()
        content, self._content = self._content, None
        return {"type": "http.request", "body": content, "more_body": False}

    async def drop(self) -> None:
        """Read and discard the rest, within limits: closing on a client that still sends would lose the answer."""
        if self._ended or not self._expected:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while self.size < LINGER_BYTES:
                    message = await self._receive()
                    if message["type"] != "http.request" or not message.get("more_body", False):
                        return
                    self.size += len(message["body"])

    def _check(self) -> None:
        if self._encoding not in (b"identity", *COMPRESSED):
            shown = self._encoding[:40].decode("latin-1")
            raise UnsupportedEncodingError(f"Content-Encoding {shown!r} is not read here; send gzip, deflate or none.")
        declared = self._declared
        if declared.isdigit() and (len(declared) > LONGEST_LENGTH or int(declared) > self._limit):
            raise self._too_large(f"{declared[:20].decode()} bytes")

    async def _read(self) -> bytes:
        parts = []
        while not self._ended:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientDisconnect
            self._ended = not message.get("more_body", False)
            part = message.get("body", b"")
            self.size += len(part)
            if self.size > self._limit:
                raise self._too_large("more")
            if self._inflate is None:
                self._hold(self.size)
            parts.append(part if self._inflate is None else self._decompress(part))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _decompress(self, part: bytes) -> bytes:
        """Decompress a part of the body; gzip may have several members, one after the other."""
        assert self._inflate is not None
        plain = []
        while part:
            if self._inflate.eof:
                self._next_member()
            most = self._limit + 1 - self._length
            self._hold(self._length + min(most, LARGEST_RATIO * len(part)))
            try:
                plain.append(self._inflate.decompress(part, most))
            except zlib.error:
                raise self._broken() from None
            self._length += len(plain[-1])
            if self._length > self._limit:
                raise self._too_large("more when decompressed")
            part = self._inflate.unused_data
        self._hold(self._length)
        if self._ended and not self._inflate.eof:
            raise self._broken()
        return b"".join(plain)

    def _hold(self, size: int) -> None:
        """Count `size` bytes that have arrived, and once more for the whole that they are joined to."""
        self._memory.set("body", 2 * size + (INFLATE_BYTES if self._inflate is not None else 0))

    def parsed(self) -> None:
        """The body has become the request."""
        self._memory.set("body", PARSED * self._read_bytes)

    def _next_member(self) -> None:
        self._members += 1
        if self._encoding == b"deflate" or self._members > MOST_MEMBERS:
            raise self._broken()
        self._inflate = zlib.decompressobj(wbits=ANY_ZLIB_FORMAT)

    def _broken(self) -> InvalidJSONError:
        return InvalidJSONError(f"The body is not the {self._encoding.decode()} that Content-Encoding says.")

    def _too_large(self, found: str) -> BodyTooLargeError:
        return BodyTooLargeError(f"The body is too large: at most {self._limit} bytes are taken, and it has {found}.")


def utf8(content: bytes) -> bytes:
    """The body as it is; JSON that is to be exchanged is UTF-8 (RFC 8259), which has no zero bytes then."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise InvalidJSONError(f"The body is not JSON: it is not UTF-8, at byte {error.start + 1}.") from None
    if b"\0" in content:
        raise InvalidJSONError("The body is not JSON: it has zero bytes; send it as UTF-8.")
    return content
