"""The request line: methods, targets and versions (RFC 9112, 2 and 3)."""

from __future__ import annotations

from collections.abc import Iterator

from bench.reliability.conformance.case import HOST, MAY, MUST, OWN, REFUSED, SHOULD, Case, case, plain, request

LONG = b"a" * 20_000
VERSIONS = [b"HTTP/0.9", b"HTTP/2.0", b"HTTP/3.0", b"HTTP/9.9"]
NO_VERSIONS = [b"http/1.1", b"HTTP/1", b"HTTP/11", b"HTTP/1.10", b"HTTP/1.1x", b"HTTP/x.1", b"HTTP/1,1", b"HTTP/+1.1"]
NO_VERSIONS += [
    b"HTTPS/1.1",
    b"HTTP/1.1 HTTP/1.1",
    b"ICE/1.1",
    b"RTSP/1.0",
    b"HTTP/ 1.1",
    b"HTTP /1.1",
    b"1.1",
    b"HTTP",
]
KNOWN_METHODS = [b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE"]
UNKNOWN_METHODS = [b"BREW", b"get", b"Get", b"GETT", b"M-POST", b"X" * 50, b"PROPFINDX", b"!#$%&'*+.^_`|~"]
NO_METHODS = [b"", b"G(T", b"GE\tT", b"G\xc3\x89T", b"GET:", b'"GET"', b"GET\0", b"\x01GET", b"{}", b"<GET>"]
TAKEN = [b"/healthz", b"/healthz?", b"/healthz?a=b&c=%20", b"/%68ealthz", b"http://x/healthz", b"HTTP://X:80/healthz"]
TAKEN += [b"/healthz?q=/../?x", b"/healthz?" + b"q" * 4000]
NO_TARGETS = [b"healthz", b"x/healthz", b"*", b"x:80", b"//x:y:z#", b"/healthz#part", b"http://", b"http:///healthz"]
NO_TARGETS += [
    b"ftp://x/healthz",
    b"http://u:p@x/healthz",
    b"http://x:port/healthz",
    b"\\healthz",
    b"?q",
    b"/he\0althz",
]
NO_TARGETS += [b"/he\x01althz", b"/he\x7falthz", b"http://x y/healthz", b"/a b", b"/healthz\x0b"]
TRAVERSALS = [b"/page/../../../../etc/passwd", b"/page/%2e%2e/%2e%2e/etc/passwd", b"/docs/..%2f..%2fsetup.py"]
TRAVERSALS += [
    b"/page/..\\..\\x",
    b"/page//etc/passwd",
    b"/page/%00index.html",
    b"/page/....//x",
    b"/page/%c0%ae%c0%ae/x",
]


def cases() -> Iterator[Case]:
    yield from _versions()
    yield from _methods()
    yield from _targets()
    yield from _whitespace()


def _versions() -> Iterator[Case]:
    for version in VERSIONS:
        yield case(f"version {version.decode()}", "9110 15.6.6", SHOULD, request(version=version), REFUSED)
    known = "the parser takes no minor version above 1"
    sent = request(version=b"HTTP/1.2")
    yield case("version HTTP/1.2", "9110 2.5", SHOULD, sent, "200 end", behind="200 end|505", known=known)
    for version in NO_VERSIONS:
        allowed = REFUSED + "|closed"
        known = "the parser reads the lines of RTSP as well" if version.startswith(b"RTSP") else ""
        behind = "200 end" if version == b"HTTP/1.10" else ""
        sent = request(version=version)
        yield case(f"version {version.decode()}", "9112 3", SHOULD, sent, allowed, behind=behind, known=known)
    yield case("no version", "9112 3", MUST, b"GET /healthz\r\n" + HOST + b"\r\n\r\n", REFUSED, behind="-")
    yield case("HTTP/1.0", "9112 9.3", MUST, plain(version=b"HTTP/1.0"), "200", behind="-")
    yield case("HTTP/1.0 answered as 1.1", "9110 2.5", MAY, request(version=b"HTTP/1.0"), "200")


def _methods() -> Iterator[Case]:
    for method in KNOWN_METHODS:
        yield case(
            f"{method.decode()} where it is not allowed",
            "9110 15.5.6",
            MUST,
            request(method=method),
            "405 end|501 end|501",
            behind="-" if method == b"TRACE" else "405 end|405|501 end",
        )
    for method in UNKNOWN_METHODS:
        yield case(
            f"method {method.decode()}", "9110 9.1", SHOULD, request(method=method), "405 end|501 end|501|400",
            behind="405 end|501 end|400",
        )  # fmt: skip
    for method in NO_METHODS:
        yield case(f"method {method!r}", "9112 3.1", MUST, request(method=method), REFUSED)
    sent = request(method=b"CONNECT", target=b"x:443")
    yield case("CONNECT", "9110 9.3.6", MAY, sent, "400|405|501", behind="400|405|405 end")
    yield case("a method of 100,000 bytes", "9112 3", MAY, request(method=LONG * 5), "400|431|501", behind="400|414")
    sent, allowed = request(method=b"OPTIONS", target=b"*"), "200 end|204 end|404 end|405 end"
    yield case("OPTIONS *", "9110 9.3.7", MUST, sent, allowed, behind="400")


def _targets() -> Iterator[Case]:
    for target in TAKEN:
        yield case(f"target {target[:40].decode()}", "9112 3.2", MUST, request(target=target), "200 end")
    for target in NO_TARGETS:
        yield case(
            f"target {target!r}",
            "9112 3.2",
            SHOULD,
            request(target=target),
            "400|404 end",
            behind="400|404 end|200 end|405 end|405",
        )
    for target in TRAVERSALS:
        yield case(f"no way out by {target.decode()}", "9110 17.3", MUST, request(target=target), "404 end|400")
    for size in (1, 2, 4, 16):
        target = b"/" + LONG * size
        yield case(
            f"a target of {size * 20_000} bytes", "9112 3", SHOULD, request(target=target), "404 end|414|431|431 end",
            behind="414|404 end",
        )  # fmt: skip
    for target in (b"http://x", b"http://x?a=b"):
        yield case(f"target {target.decode()}", "9112 3.2.2", MUST, request(target=target), "200 end")
    sent = plain(b"Host: other", target=b"http://x/healthz")
    yield case("an absolute target and another Host", "9112 3.2.2", MUST, sent, "200 end")


def _whitespace() -> Iterator[Case]:
    line = b"\r\n" + HOST + b"\r\n\r\n"
    for name, first in {
        "two spaces before the target": b"GET  /healthz HTTP/1.1",
        "two spaces before the version": b"GET /healthz  HTTP/1.1",
        "a tab": b"GET\t/healthz HTTP/1.1",
        "a space at the end": b"GET /healthz HTTP/1.1 ",
        "a form feed": b"GET\x0c/healthz HTTP/1.1",
        "a space in front": b" GET /healthz HTTP/1.1",
        "CR alone": b"GET /healthz HTTP/1.1\rX: y",
        "NUL at the end": b"GET /healthz HTTP/1.1\0",
    }.items():
        yield case(
            f"request line with {name}", "9112 3", MAY, first + line, "200 end|400|505", behind="200 end|400|405"
        )
    for count in (1, 2, 10):
        yield case(f"{count} empty lines in front", "9112 2.2", SHOULD, b"\r\n" * count + request(), "200 end",
                   behind="200 end|400")  # fmt: skip
    yield case("lines that end with LF", "9112 2.2", MAY, request().replace(b"\r\n", b"\n"), "200 end|400")
    yield case(
        "CR alone at each end", "9112 2.2", MUST, request().replace(b"\r\n", b"\r"), "400|408", behind="400|408|open"
    )
    yield case("TLS", "9112 3", OWN, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(60), "400")
    yield case(
        "the preface of HTTP/2", "9113 3.4", OWN, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), "505|400", behind="-"
    )
    yield case("binary", "9112 3", OWN, bytes(range(128, 256)) + b"\r\n\r\n", "400")
    yield case("nothing but spaces", "9112 3", OWN, b"    \r\n\r\n", "400", behind="400|408|open|open end")
