"""HEAD, OPTIONS, TRACE and conditional requests, on every route of the application without a body
(RFC 9110, 9, 13 and 14).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from attendant.service.http.routes import ROUTES, methods_of
from bench.reliability.conformance.answers import Answer
from bench.reliability.conformance.case import BODY, HOST, LENGTH, MAY, MUST, SHOULD, Case, case, plain, request

PAGE = b"/"
FILE = b"/page/main.js"
NO_TAGS = [b"x", b'"', b'"a', b"W/", b'w/"a"', b",", b'"a" "b"', b"\xff"]
NO_DATES = [b"yesterday", b"0", b"Sun, 99 Foo 2026 25:61:61 GMT", b"Sun, 06 Nov 1994 08:49:37", b"\xff", b"9" * 100]
SAME = {b"content-length", b"content-type", b"etag", b"last-modified", b"allow", b"cache-control", b"content-encoding"}


def paths(method: str) -> list[bytes]:
    """Every path with this method; what a path names is one that is there, or nothing."""
    found = dict.fromkeys(route.path for route in ROUTES if method in methods_of(route))
    return [re.sub(r"{\w+(:path)?}", "nothing", path).encode() for path in found]


def cases() -> Iterator[Case]:
    for path in paths("GET"):
        # One connection, one answer after the other: the second must be the first without its body.
        sent = request(target=path) + request(target=path, method=b"HEAD")
        statuses = "200 200 end|404 404 end|400 400 end"
        yield case(f"HEAD {path.decode()} is GET without a body", "9110 9.3.2", MUST, sent, statuses,
                   behind="*", methods=(b"GET", b"HEAD"), check=_same)  # fmt: skip
        for method in (b"POST", b"PUT", b"OPTIONS", b"TRACE", b"PROPFIND"):
            if path in paths(method.decode()):
                continue
            yield case(
                f"{method.decode()} {path.decode()}",
                "9110 15.5.6",
                MUST,
                request(method=method, target=path),
                "405 end|501 end|400|501",
                behind="-" if method == b"TRACE" else "*",  # which nginx answers itself, without Allow
                check=_allows_get if method == b"PUT" else None,
            )
    for path in paths("POST"):
        sent = request(LENGTH, body=BODY, method=b"DELETE", target=path)
        yield case(f"DELETE {path.decode()}", "9110 15.5.6", MUST, sent, "405 end|405", behind="*")
        name = f"POST {path.decode()} of what is no JSON"
        sent, allowed = (
            request(b"Content-Length: 1", body=b"{", method=b"POST", target=path),
            "400 end|403 end|404 end|422 end",
        )
        yield case(name, "9110 15.5.1", SHOULD, sent, allowed, behind="*", check=_is_json)
    yield from _conditional()


def _same(answers: list[Answer]) -> str:
    first, second = answers[0], answers[1]
    wanted = {name: value for name, value in first.headers.items() if name in SAME}
    found = {name: value for name, value in second.headers.items() if name in SAME}
    if b"transfer-encoding" in first.headers or first.headers.get(b"content-type", b"").startswith(b"text/plain"):
        wanted.pop(b"content-length", None)  # /metrics: its length changes with each request
        found.pop(b"content-length", None)
    return "" if wanted == found else f"GET says {wanted}, HEAD {found}"


def _allows_get(answers: list[Answer]) -> str:
    if answers[0].status != 405:
        return ""
    allow = {each.strip() for each in answers[0].headers[b"allow"].split(b",")}
    return "" if {b"GET", b"HEAD"} <= allow else f"Allow has no GET and HEAD: {allow}"


def _is_json(answers: list[Answer]) -> str:
    try:
        json.loads(answers[0].body)
    except ValueError:
        return f"the error is no JSON: {answers[0].body[:80]!r}"
    return ""


def _conditional() -> Iterator[Case]:
    for path in (PAGE, FILE):
        name = path.decode()
        for tag in (b"*", b'W/"x", *', b'*,"x"'):
            sent = request(b"If-None-Match: " + tag, target=path)
            yield case(
                f"If-None-Match: {tag.decode()} of {name}",
                "9110 13.1.2",
                MUST if tag == b"*" else MAY,
                sent,
                "304 end|200 end",
            )
        for tag in NO_TAGS:
            sent = request(b"If-None-Match: " + tag, target=path)
            yield case(f"If-None-Match: {tag!r} of {name}", "9110 13.1.2", MAY, sent, "200 end")
        for date in NO_DATES:
            sent = request(b"If-Modified-Since: " + date, target=path)
            yield case(f"If-Modified-Since: {date[:30]!r} of {name}", "9110 13.1.3", MUST, sent, "200 end")
        sent = request(b"If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT", target=path)
        yield case(f"If-Modified-Since: the future, of {name}", "9110 13.1.3", SHOULD, sent, "304 end|200 end")
        sent = request(b"If-Modified-Since: Thu, 01 Jan 1970 00:00:01 GMT", target=path)
        yield case(f"If-Modified-Since: long ago, of {name}", "9110 13.1.3", MUST, sent, "200 end")
        sent = request(b'If-None-Match: "x"', b"If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT", target=path)
        yield case(f"If-None-Match before If-Modified-Since, of {name}", "9110 13.2.2", MUST, sent, "200 end")
        for wanted in (
            b"bytes=0-1",
            b"bytes=-1",
            b"bytes=5-",
            b"bytes=0-0,2-3",
            b"x=1-2",
            b"bytes=",
            b"bytes=9-1",
            b"bytes=" + b"0-1," * 500,
        ):
            sent = request(b"Range: " + wanted, target=path)
            yield case(
                f"Range: {wanted[:20].decode()} of {name}", "9110 14.2", MAY, sent, "200 end|206 end|416 end|400 end"
            )
        sent = request(b"Accept-Encoding: identity;q=1, *;q=0", target=path)
        yield case(f"no coding is wanted of {name}", "9110 12.5.3", SHOULD, sent, "200 end", check=_not_coded)
    sent = plain(HOST, b"Accept-Encoding: gzip;q=0, identity", target=b"/docs/swagger-ui.css")
    yield case("gzip;q=0", "9110 12.5.3", MUST, sent, "200 end", check=_not_coded)


def _not_coded(answers: list[Answer]) -> str:
    return (
        f"it came with {answers[0].headers[b'content-encoding']!r}" if b"content-encoding" in answers[0].headers else ""
    )
