"""The parser of HTTP: httptools where it is installed, which is quicker, else h11; with headers of bounded size."""

from __future__ import annotations

import asyncio
from typing import Any

LARGEST_HEADERS = 256 * 2**10  # bytes that a parser keeps; the application refuses less than that, with a sentence


def protocol_class() -> type[asyncio.Protocol]:
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol  # bounded by `h11_max_incomplete_event_size`

        return H11Protocol

    class BoundedProtocol(HttpToolsProtocol):
        """httptools itself would keep a header without end."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self._in_headers = False
            self._header_bytes = 0

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._header_bytes = self._header_bytes + len(data) if self._in_headers else 0
            if self._header_bytes > LARGEST_HEADERS and not self.transport.is_closing():
                self.send_400_response("The headers are too large.")

        def on_message_begin(self) -> None:
            self._in_headers = True
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._in_headers = False
            super().on_headers_complete()

    return BoundedProtocol
