"""Persistence, pipelining, Expect and Upgrade (RFC 9112, 9; RFC 9110, 7.6, 7.8 and 10.1)."""

from __future__ import annotations

from collections.abc import Iterator

from bench.reliability.conformance.answers import Answer
from bench.reliability.conformance.case import (
    BODY,
    HOST,
    LENGTH,
    MAY,
    MUST,
    OWN,
    SHOULD,
    Case,
    case,
    plain,
    post,
    request,
)

GET, MISSING, POST = request(), request(target=b"/nothing"), post(LENGTH)
CLOSE = [
    b"close",
    b"Close",
    b"CLOSE",
    b"keep-alive, close",
    b"close, keep-alive",
    b"x-a, close",
    b" close ",
    b",close,",
    b"close,",
]
KEPT = [
    b"keep-alive",
    b"Keep-Alive",
    b"x-a",
    b"",
    b"closed",
    b"not-close",
    b"keep-alive, x-a",
    b'"close"',
    b"TE",
    b"Host",
]
OFFERS = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",
    "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13",
    "TLS": b"Connection: Upgrade\r\nUpgrade: TLS/1.2",
    "nothing known": b"Connection: upgrade\r\nUpgrade: x, y/1",
    "nothing": b"Connection: upgrade",
    "without Connection": b"Upgrade: h2c",
    "an empty one": b"Connection: upgrade\r\nUpgrade:",
}


def cases() -> Iterator[Case]:
    yield from _persistence()
    yield from _pipelining()
    yield from _expectations()
    for name, lines in OFFERS.items():
        yield case(f"an offer of {name}", "9110 7.8", MAY, request(lines), "200 end", behind="200 end|101")
        yield case(f"an offer of {name}, with a body", "9110 7.8", MAY, post(LENGTH, lines), "200 end")
        sent = post(LENGTH, lines) + GET
        yield case(f"an offer of {name}, and a request behind it", "9110 7.8", MUST, sent, "200 200 end")


def _persistence() -> Iterator[Case]:
    for option in CLOSE:
        sent = request(b"Connection: " + option) + GET
        yield case(f"Connection: {option.decode()}", "9112 9.6", MUST, sent, "200", check=_says_close)
    yield case(
        "close in the second line", "9112 9.6", MUST, request(b"Connection: x-a", b"Connection: close") + GET, "200"
    )
    for option in KEPT:
        yield case(
            f"Connection: {option.decode()}",
            "9112 9.3",
            SHOULD,
            request(b"Connection: " + option),
            "200 end",
            behind="200",
        )
    sent = plain(b"Connection: keep-alive", HOST, version=b"HTTP/1.0")
    yield case("keep-alive of HTTP/1.0", "9112 9.3", MAY, sent, "200|200 end")
    yield case("no keep-alive of HTTP/1.0", "9112 9.3", MUST, plain(HOST, version=b"HTTP/1.0") + GET, "200")
    sent = plain(HOST, b"Connection: close", version=b"HTTP/1.0") + GET
    yield case("close of HTTP/1.0", "9112 9.3", MUST, sent, "200")
    for name, first in {
        "404": MISSING,
        "405": request(method=b"DELETE"),
        "422": _invalid(b"{}"),
        "400": _invalid(b"{"),
    }.items():
        yield case(f"open after {name}", "9112 9.3", SHOULD, first, f"{name} end")


def _invalid(body: bytes) -> bytes:
    return post(b"Content-Length: %d" % len(body), body=body)


def _says_close(answers: list[Answer]) -> str:
    return "" if answers[-1].closes else "the last answer does not say Connection: close"


def _pipelining() -> Iterator[Case]:
    for name, sent, statuses in (
        ("two GET", GET * 2, [200] * 2),
        ("ten GET", GET * 10, [200] * 10),
        ("100 GET", GET * 100, [200] * 100),
        ("GET, POST, GET", GET + POST + GET, [200] * 3),
        ("POST, POST", POST * 2, [200] * 2),
        ("a found one and one that is not", GET + MISSING + GET, [200, 404, 200]),
        ("what is refused in between", GET + _invalid(b"{") + GET, [200, 400, 200]),
        ("a chunked POST and a GET", post(b"Transfer-Encoding: chunked", body=_chunks()) + GET, [200] * 2),
        ("an empty line in between", GET + b"\r\n" + GET, [200] * 2),
    ):
        outcome = " ".join(map(str, statuses))
        yield case(f"pipelined: {name}", "9112 9.3.2", MUST, sent, f"{outcome} end")
    heads = request(method=b"HEAD") + GET
    yield case("pipelined: HEAD, GET", "9112 6.3", MUST, heads, "200 200 end", methods=(b"HEAD", b"GET"))
    yield case(
        "pipelined: nothing behind close", "9112 9.6", MUST, GET + request(b"Connection: close") + POST, "200 200"
    )
    yield case("pipelined: nothing behind garbage", "9112 9.3.2", OWN, GET + b"garbage\r\n\r\n" + GET, "200 400")
    half = GET + POST[:30]
    yield case("pipelined: the second comes in two parts", "9112 9.3.2", MUST, (half, POST[30:]), "200 200 end")
    yield case("a request that does not end", "9112 9.5", SHOULD, POST[:30], "408|400", end=False, behind="-")
    yield case(
        "headers that do not end", "9112 9.5", SHOULD, POST.partition(b"\r\n\r\n")[0], "408|400", end=False, behind="-"
    )


def _chunks() -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


def _expectations() -> Iterator[Case]:
    for expectation in (b"100-continue", b"100-Continue", b"100-CONTINUE"):
        head = post(LENGTH, b"Expect: " + expectation, body=b"")
        name = f"Expect: {expectation.decode()}"
        yield case(f"{name}, body later", "9110 10.1.1", MUST, (head, BODY), "100 200 end")
        yield case(f"{name}, body at once", "9110 10.1.1", MAY, head + BODY, "200 end|100 200 end")
    sent = post(b"Transfer-Encoding: chunked", b"Expect: 100-continue", body=b"")
    yield case("Expect with a chunked body", "9110 10.1.1", MUST, (sent, _chunks()), "100 200 end")
    yield case(
        "Expect without a body",
        "9110 10.1.1",
        MUST,
        request(b"Expect: 100-continue"),
        "200 end",
        behind="200 end|100 200 end",
    )
    sent = plain(HOST, LENGTH, b"Expect: 100-continue", method=b"POST", target=b"/v1/generate", version=b"HTTP/1.0")
    yield case("Expect of HTTP/1.0", "9110 10.1.1", MUST, (sent, BODY), "200")
    head = request(LENGTH, b"Expect: 100-continue", method=b"POST", target=b"/nothing")
    yield case("Expect where there is nothing", "9110 10.1.1", MUST, head, "404|404 end|417", end=False,
               behind="404|100|100 404|open|100 open")  # fmt: skip
    for expectation in (b"200-ok", b"x=y", b"", b"100-continue, x"):
        sent = post(LENGTH, b"Expect: " + expectation)
        yield case(f"Expect: {expectation.decode()}", "9110 10.1.1", MAY, sent, "200 end|417 end|417|100 200 end")
