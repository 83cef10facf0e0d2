"""Headers that HTTP wants refused, whatever the path (RFC 9110 and 9112)."""

from __future__ import annotations

import re

from starlette.types import Scope

from attendant.service.http.errors import InvalidHTTPError, UnsupportedTransferError
from attendant.service.http.wire.request_lines import HOST

GOOD_HOST = re.compile(HOST)
ONCE = (b"authorization", b"content-encoding", b"host")  # of two, it would be a guess which one holds


def check_headers(scope: Scope) -> None:
    found: dict[bytes, bytes] = {}
    codings = []
    for name, value in scope["headers"]:
        if name in found and name in ONCE:
            raise InvalidHTTPError(f"The header {name.decode().title()} came twice; send it once.")
        if name == b"transfer-encoding":
            codings.append(value)
        found[name] = value
    _check_host(found.get(b"host"), scope["http_version"])
    if codings:
        _check_coding(b",".join(codings), scope["http_version"])


def _check_host(host: bytes | None, version: str) -> None:
    if host is None:
        if version == "1.1":
            raise InvalidHTTPError("The header Host is missing; send it, as HTTP/1.1 wants it.")
    elif GOOD_HOST.fullmatch(host) is None:
        raise InvalidHTTPError(f"The header Host takes a name and a port, not {host[:100].decode('latin-1')!a}.")


def _check_coding(coding: bytes, version: str) -> None:
    if version == "1.0":
        raise InvalidHTTPError("HTTP/1.0 has no Transfer-Encoding; send Content-Length, or HTTP/1.1.")
    if coding.strip().lower() != b"chunked":
        shown = ascii(coding[:40].decode("latin-1"))
        raise UnsupportedTransferError(f"Transfer-Encoding {shown} is not read here; send chunked, or Content-Length.")
