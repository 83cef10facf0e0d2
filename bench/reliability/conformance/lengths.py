"""Content-Length, and how long a body is (RFC 9112, 6; RFC 9110, 8.6)."""

from __future__ import annotations

from collections.abc import Iterator

from bench.reliability.conformance.case import BODY, HIDDEN, LENGTH, MAY, MUST, SHOULD, Case, case, post, request

SIZE = len(BODY)
NO_LENGTHS = [
    b"",
    b" ",
    b"+20",
    b"-1",
    b"-0",
    b"0x14",
    b"20.0",
    b"2e1",
    b"20,20",
    b"20, 20",
    b"20,21",
    b"20;",
    b"20 20",
]
NO_LENGTHS += [
    b"twenty",
    b"20\0",
    b"20\x0b",
    b"\x0b20",
    b"\xc2\xb2",
    b"\xd9\xa2",
    b"0b1",
    b"20_0",
    b"(20)",
    b'"20"',
    b"NaN",
]
NO_LENGTHS += [
    b"18446744073709551616",
    b"18446744073709551636",
    b"9" * 30,
    b"-18446744073709551596",
    b"20\r\n 1",
    b"20\r\n\t",
]


def cases() -> Iterator[Case]:
    for length in NO_LENGTHS:
        sent = post(b"Content-Length: " + length, body=b"a" * 20 + HIDDEN)
        yield case(f"Content-Length {length.decode('latin-1')!a}", "9112 6.3", MUST, sent, "400|413")
    for length in (b"%d", b"%d ", b"\t%d", b"0%d", b"0000000%d"):
        sent = post(b"Content-Length: " + length % SIZE)
        level = MUST if length.strip() == b"%d" else MAY
        yield case(
            f"Content-Length {length!r}",
            "9110 8.6",
            level,
            sent,
            "200 end" if level == MUST else "200 end|400",
            behind="400",
        )
    for name, line in {
        "two lengths that differ": LENGTH + b"\r\nContent-Length: 3",
        "two lengths that differ, the short first": b"Content-Length: 3\r\n" + LENGTH,
        "three lengths": LENGTH + b"\r\n" + LENGTH + b"\r\nContent-Length: 0",
        "a length and an empty one": LENGTH + b"\r\nContent-Length:",
        "a length written another way": LENGTH + b"\r\nCONTENT-LENGTH: 3",
    }.items():
        yield case(name, "9112 6.3", MUST, post(line, body=BODY + HIDDEN), "400")
    yield case("the same length twice", "9112 6.3", MAY, post(LENGTH, LENGTH), "400|200 end")
    for name, line in {
        "an underscore": b"Content_Length: %d",
        "a space before the colon": b"Content-Length : %d",
        "a NUL before the colon": b"Content-Length\0: %d",
        "a tab before the colon": b"Content-Length\t: %d",
        "a line in front that folds": b"X: a\r\n Content-Length: %d",
    }.items():
        # It is no Content-Length: without one the request has no body, and what follows is no request.
        sent = post(line % SIZE)
        yield case(f"Content-Length with {name}", "9112 5.1", MUST, sent, "400|422 400|400 400")
    yield from _bodies()


def _bodies() -> Iterator[Case]:
    yield case("no length, no body", "9112 6.3", MUST, post(body=b""), "400 end|422 end|411 end")
    yield case("a body of 0 bytes", "9112 6.3", MUST, post(b"Content-Length: 0", body=b""), "400 end|422 end")
    yield case("a GET with a body", "9110 9.3.1", MAY, request(LENGTH, body=BODY), "200 end|400")
    yield case("a GET with a length of 0", "9110 9.3.1", MUST, request(b"Content-Length: 0"), "200 end")
    sent = request(LENGTH, body=BODY, method=b"HEAD")
    yield case("a HEAD with a body", "9110 9.3.2", MAY, sent, "200 end|400", methods=(b"HEAD",))
    yield case(
        "a DELETE with a body", "9110 9.3.5", MAY, request(LENGTH, body=BODY, method=b"DELETE"), "405 end|405|400"
    )
    yield case("a body with CRLF behind it", "9112 2.2", SHOULD, post(LENGTH, body=BODY + b"\r\n"), "200 end")
    yield case("a body that looks like a request", "9112 6", MUST,
               post(b"Content-Length: %d" % len(HIDDEN), body=HIDDEN), "400 end")  # fmt: skip
    yield case("a body in two parts", "9112 6.3", MUST, (post(LENGTH, body=BODY[:5]), BODY[5:]), "200 end")
    single = tuple(post(LENGTH)[i : i + 1] for i in range(len(post(LENGTH))))
    yield case("a request in single bytes", "9112 2.2", MUST, single, "200 end")
    yield case("less than the length", "9112 8", MUST, post(LENGTH, body=BODY[:-3]), "408|400", end=False, behind="-")
    sent = post(b"Content-Length: %d" % (SIZE - 2), body=BODY)
    yield case(
        "more than the length",
        "9112 6.3",
        MUST,
        sent,
        "400 400|400",
        end=False,
        behind="400 400|400|400 405|400 405 end",
    )
    sent = post(b"Content-Length: 100000000", body=b"")
    yield case("a length above the limit", "9110 15.5.14", MAY, sent, "413", end=False, behind="413 open")
    sent = post(b"Content-Length: 100000000", b"Expect: 100-continue", body=b"")
    yield case(
        "a length above the limit, with Expect",
        "9110 10.1.1",
        MUST,
        sent,
        "413|413 end|417",
        end=False,
        behind="413 open",
    )
