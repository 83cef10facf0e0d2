"""Header lines and Host (RFC 9112, 3.2 and 5; RFC 9110, 5)."""

from __future__ import annotations

from collections.abc import Iterator

from bench.reliability.conformance.case import (
    HOST,
    LENGTH,
    MAY,
    MUST,
    REFUSED,
    SHOULD,
    Case,
    case,
    plain,
    post,
    request,
)

NO_HOSTS = [
    b"",
    b"Host:",
    b"Host: x\r\nHost: x",
    b"Host: x\r\nHost: y",
    b"Host: x\r\nhOST: y",
    b"Host: u@h",
    b"Host: h/p",
]
NO_HOSTS += [b"Host: a, b", b"Host: a b", b"Host: h:port", b"Host: h:80:80", b"Host: [::1", b"Host: ::1", b"Host: h?q"]
NO_HOSTS += [
    b"Host: h#f",
    b"Host: :80",
    b"Host: \xc3\xa9",
    b"Host: http://h",
    b"Host: h\\x",
    b"Host: <h>",
    b'Host: "h"',
]
HOSTS = [
    b"h",
    b"h:8000",
    b"h:",
    b"127.0.0.1:1",
    b"[::1]:80",
    b"[::1]",
    b"a_b.example",
    b"%41",
    b"xn--nxasmq6b",
    b"a" * 250,
]
BAD_LINES = {  # RFC 9112 5.1 and 5: refused, or at least never taken for the header that they resemble
    "a space before the colon": b"X-A : b",
    "a tab before the colon": b"X-A\t: b",
    "no colon": b"X-A",
    "no name": b": b",
    "a space in the name": b"X A: b",
    "a letter beyond ASCII in the name": b"X-\xc3\xa9: b",
    "parentheses in the name": b"X(A): b",
    "a slash in the name": b"X/A: b",
    "a comma in the name": b"X,A: b",
    "a quote in the name": b'"X": b',
    "an at sign in the name": b"X@A: b",
    "brackets in the name": b"X[A]: b",
    "braces in the name": b"X{A}: b",
    "NUL in the name": b"X\0A: b",
    "DEL in the name": b"X\x7fA: b",
    "NUL in the value": b"X-A: a\0b",
    "CR in the value": b"X-A: a\rb",
    "a control character in the value": b"X-A: a\x01b",
    "DEL in the value": b"X-A: a\x7fb",
    "a folded value": b"X-A: a\r\n b",
    "a value folded by a tab": b"X-A: a\r\n\tb",
    "a line that begins with a space": b" X-A: b",
    "a line that begins with a tab": b"\tX-A: b",
}
GOOD_LINES = {
    "an empty value": b"X-A:",
    "a value of spaces": b"X-A:    ",
    "tabs around the value": b"X-A:\tb\t",
    "no space": b"X-A:b",
    "bytes beyond ASCII in the value": b"X-A: \xe9\xff",
    "all signs of a token": b"!#$%&'*+-.^_`|~0Aa: b",
    "the same name twice": b"X-A: a\r\nX-A: b",
    "two lines of Accept": b"Accept: text/html\r\nAccept: application/json",
    "colons in the value": b"X-A: b:c:d",
    "quotes that do not end": b'X-A: "b',
    "a name of 200 bytes": b"X" * 200 + b": b",
    "a value of 2,000 bytes": b"X-A: " + b"b" * 2000,
    "50 headers": b"\r\n".join(b"X-%d: b" % i for i in range(50)),
    "Forwarded": b"Forwarded: for=1.2.3.4;host=h\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Host: h",
    "a path of others": b"X-Original-URL: /v1/reload\r\nX-Rewrite-URL: /v1/reload",
    "another method": b"X-HTTP-Method-Override: DELETE",
    "a Referer that is none": b"Referer: \xff",
    "cookies": b"Cookie: a=b; c=\x22d",
    "a Date that is none": b"Date: yesterday",
    "a TE without Connection": b"TE: trailers",
    "Keep-Alive": b"Keep-Alive: timeout=1, max=1000000",
    "Max-Forwards": b"Max-Forwards: 0",
    "an Accept of nothing": b"Accept: application/x-none",
    "a Range": b"Range: bytes=0-1",
}


def cases() -> Iterator[Case]:
    for host in NO_HOSTS:
        section = "9112 3.2"
        # nginx answers 400 to most of these; what it passes on has the Host that it made of them, which is good.
        name = ascii(host.decode("latin-1")) if host else "none"
        lines = [host] if host else []
        yield case(f"Host {name}", section, MUST, plain(*lines), "400|400 end", behind="400|400 end|200 end")
    for host in HOSTS:
        yield case(f"Host {host[:20].decode()}", "9110 7.2", MUST, plain(b"Host: " + host), "200 end")
    yield case("two Hosts of HTTP/1.0", "9112 3.2", MUST, plain(HOST, HOST, version=b"HTTP/1.0"), "400")
    for name, line in BAD_LINES.items():
        level = SHOULD if "character" in name or "DEL in the v" in name else MUST
        behind = REFUSED + "|200 end|400 end"  # nginx leaves out a header whose name is invalid
        yield case(name, "9112 5", level, request(line), REFUSED, behind=behind)
    yield case(
        "a line that begins with a space, first", "9112 2.2", MUST, plain(b" X: y", HOST), "400", behind="400|200 end"
    )
    for name, line in GOOD_LINES.items():
        yield case(name, "9110 5.5", MUST, request(line), "200 end", behind="200 end|206 end")
    yield from _sizes()
    yield from _of_the_body()


def _sizes() -> Iterator[Case]:
    refused = "431|431 end|400"
    for kib in (8, 16, 60):
        line = b"X: " + b"a" * (kib * 1024)
        yield case(f"a header of {kib} KiB", "9110 5.4", MAY, request(line), f"200 end|{refused}")
    for name, lines in {
        "a header of 300 KiB": b"X: " + b"a" * 300 * 1024,
        "a header of 2 MiB": b"X: " + b"a" * 2**21,
        "a name of 300 KiB": b"X" * 300 * 1024 + b": a",
        "100,000 headers": b"\r\n".join([b"a:b"] * 100_000),
    }.items():
        yield case(name, "9110 5.4", MUST, request(lines), refused)


def _of_the_body() -> Iterator[Case]:
    ok, unsupported = "200 end", "415 end|415"
    for kind in (
        b"application/json",
        b"application/json; charset=utf-8",
        b"text/plain",
        b"application/x-www-form-urlencoded",
    ):
        yield case(f"Content-Type {kind.decode()}", "9110 8.3", MAY, post(LENGTH, b"Content-Type: " + kind), ok)
    yield case("no Content-Type", "9110 8.3", SHOULD, post(LENGTH), ok)
    for coding in (b"rot13", b"br", b"zstd", b"gzip, gzip"):
        sent = post(LENGTH, b"Content-Encoding: " + coding)
        yield case(f"Content-Encoding {coding.decode()}", "9110 8.4", SHOULD, sent, unsupported)
    yield case("Content-Encoding identity", "9110 8.4", MAY, post(LENGTH, b"Content-Encoding: identity"), ok)
    yield case(
        "Content-Encoding gzip of what is none",
        "9110 8.4.1",
        MAY,
        post(LENGTH, b"Content-Encoding: gzip"),
        "400 end|400",
    )
