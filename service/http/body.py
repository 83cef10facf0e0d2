"""A request's body, read within its limit and decompressed: what is too large is refused before it is read whole."""

from __future__ import annotations

import asyncio
import zlib
from contextlib import suppress

from starlette.types import Message, Receive, Scope

from service.errors import BodyTooLargeError, InvalidJSONError

HEADERS = (b"content-length", b"content-encoding", b"transfer-encoding")
COMPRESSED = (b"gzip", b"x-gzip", b"deflate")
LINGER_SECONDS = 2.0  # how long, and
LINGER_BYTES = 256 * 2**20  # how far a refused body is read on and dropped, so that its sender gets to see the answer


class UnsupportedEncodingError(InvalidJSONError):
    status, type = 415, "unsupported_encoding"


class Body:
    """The `receive` of a request; every byte of its body passes here."""

    def __init__(self, scope: Scope, receive: Receive, limit: int) -> None:
        self._receive, self._limit = receive, limit
        headers = {name: value for name, value in scope["headers"] if name in HEADERS}
        self._declared = headers.get(b"content-length", b"")
        self._encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        self._expected = bool(self._declared.strip(b"0")) or b"transfer-encoding" in headers
        self._inflate = zlib.decompressobj(wbits=47) if self._encoding in COMPRESSED else None
        self.size = 0  # bytes received
        self._length = 0  # bytes handed on
        self._ended = False

    def check(self) -> None:
        """Refuse by the headers alone."""
        if self._encoding not in (b"identity", *COMPRESSED):
            shown = self._encoding[:40].decode("latin-1")
            raise UnsupportedEncodingError(f"Content-Encoding {shown!r} is not read here; send gzip, deflate or none.")
        if self._declared.isdigit() and (len(self._declared) > 18 or int(self._declared) > self._limit):
            raise self._too_large(f"{self._declared[:20].decode()} bytes")

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.request" or self._ended:
            return message
        self._ended = not message.get("more_body", False)
        body = message.get("body", b"")
        self.size += len(body)
        if self.size > self._limit:
            raise self._too_large("more")
        if self._inflate is not None and self._expected:
            body = self._decompress(body)
            message = {**message, "body": body}
        return message

    async def drop(self) -> None:
        """Read on what nobody wants, within reason: a connection closed on a sender loses the answer."""
        if self._ended or not self._expected:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while self.size < LINGER_BYTES:
                    message = await self._receive()
                    if message["type"] != "http.request" or not message.get("more_body", False):
                        return
                    self.size += len(message["body"])

    def _decompress(self, body: bytes) -> bytes:
        assert self._inflate is not None
        try:
            plain = self._inflate.decompress(body, self._limit + 1 - self._length)
        except zlib.error:
            raise self._broken() from None
        self._length += len(plain)
        if self._length > self._limit:
            raise self._too_large("more when decompressed")
        if self._inflate.unused_data or (self._ended and not self._inflate.eof):
            raise self._broken()
        return plain

    def _broken(self) -> InvalidJSONError:
        return InvalidJSONError(f"The body is not the {self._encoding.decode()} that Content-Encoding says.")

    def _too_large(self, found: str) -> BodyTooLargeError:
        return BodyTooLargeError(f"The body is too large: at most {self._limit} bytes are taken, and it has {found}.")
