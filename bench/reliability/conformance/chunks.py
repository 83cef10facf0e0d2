"""Chunked bodies: sizes, extensions, trailers (RFC 9112, 7)."""

from __future__ import annotations

from collections.abc import Iterator

from bench.reliability.conformance.case import BODY, CHUNKED, CHUNKS, HIDDEN, MAY, MUST, SHOULD, Case, case, post

SIZE = b"%x" % len(BODY)
DATA = b"\r\n" + BODY + b"\r\n"
LAST = b"0\r\n\r\n"
CODINGS = [b"Chunked", b"CHUNKED", b"chunked ", b"\tchunked", b"chunked\t", b"  chunked  "]
UNKNOWN = [
    b"gzip, chunked",
    b"deflate, chunked",
    b"identity, chunked",
    b"x-none, chunked",
    b"br,chunked",
    b"gzip\r\nTransfer-Encoding: chunked",
]
NOT_LAST = [
    b"chunked, gzip",
    b"chunked, identity",
    b"gzip",
    b"identity",
    b"deflate",
    b"xchunked",
    b"chunkedx",
    b"chunked;q=1",
]
NOT_LAST += [
    b'"chunked"',
    b"chunk",
    b"ch unked",
    b"chunked, chunked",
    b"\x0bchunked",
    b"chunked\x0b",
    b"chunked\0",
    b"cow",
]
NOT_LAST += [b"\xc3\xa7hunked", b"chunked\r\nTransfer-Encoding: cow", b"cow\r\nTransfer-Encoding: chunked, cow"]
SIZES = [SIZE.upper(), b"0" + SIZE, b"000000" + SIZE]
NO_SIZES = [b"", b" ", b"+" + SIZE, b"-" + SIZE, b"0x" + SIZE, b"g", b"-1", SIZE + b"h", b"1 4", b"f" * 16, b"f" * 17]
NO_SIZES += [
    b"1" + b"0" * 16,
    b"\x0b" + SIZE,
    b"\xd9\xa2",
    b"1_4",
    SIZE + b",",
    SIZE + b"\0",
    b'"14"',
    b"1.4",
    b"#",
]
EXTENSIONS = [b";a", b";a=b", b';a="b c"', b";a;b;c=d", b';a="\\""', b" ;a", b"; a = b", b"\t;a=b", b";" + b"a" * 1000]
NO_EXTENSIONS = [b";a\nb", b";a\rb", b';a="b\nc"', b";a\0", b";\x01"]
TRAILERS = [
    b"X: y",
    b"X: y\r\nZ: ",
    b"Content-Length: 3",
    b"Transfer-Encoding: chunked",
    b"Host: other",
    b"Authorization: Bearer x",
]
NO_TRAILERS = [b"X : y", b"no colon", b"X: a\0b", b"\x01: y"]


def cases() -> Iterator[Case]:
    for coding in CODINGS:
        sent = post(b"Transfer-Encoding: " + coding, body=CHUNKS)
        known = "the parser takes a tab behind this value for a part of it" if coding.endswith(b"\t") else ""
        behind = "501" if b"\t" in coding else ""
        yield case(f"Transfer-Encoding {coding!r}", "9112 7", MUST, sent, "200 end", behind=behind, known=known)
    for coding in UNKNOWN:
        sent = post(b"Transfer-Encoding: " + coding, body=CHUNKS + HIDDEN)
        yield case(f"Transfer-Encoding {coding!r}", "9112 6.1", SHOULD, sent, "501|400")
    for coding in NOT_LAST:
        sent = post(b"Transfer-Encoding: " + coding, body=CHUNKS + HIDDEN)
        name = ascii(coding.decode("latin-1"))
        yield case(f"Transfer-Encoding {name}", "9112 6.3", MUST, sent, "400|501", behind="400|501")
    for name, line in {
        "a space before the colon": b"Transfer-Encoding : chunked",
        "a fold": b"Transfer-Encoding:\r\n chunked",
        "a tab before the colon": b"Transfer-Encoding\t: chunked",
    }.items():
        yield case(f"Transfer-Encoding with {name}", "9112 5.1", MUST, post(line, body=CHUNKS + HIDDEN), "400")
    sent = post(b"Transfer-Encoding:", body=CHUNKS + HIDDEN)
    yield case("an empty Transfer-Encoding", "9112 6.1", MUST, sent, "400|501")
    sent = post(CHUNKED, body=CHUNKS + HIDDEN, version=b"HTTP/1.0")
    yield case("chunks of HTTP/1.0", "9112 6.1", MUST, sent, "400|200")
    yield from _sizes()
    yield from _ends()


def _sizes() -> Iterator[Case]:
    for size in SIZES:
        yield case(f"chunk size {size.decode()}", "9112 7.1", MUST, post(CHUNKED, body=size + DATA + LAST), "200 end")
    for size in NO_SIZES:
        name = ascii(size.decode("latin-1"))
        sent = post(CHUNKED, body=size + DATA + LAST + HIDDEN)
        yield case(
            f"chunk size {name}", "9112 7.1", MUST, post(CHUNKED, body=size + DATA + LAST + HIDDEN), "400|413|408"
        )
    for extension in EXTENSIONS:
        level = (
            MAY if extension.startswith((b" ", b"\t", b"; ")) else MUST
        )  # BWS, which is to be parsed, is not generated
        sent = post(CHUNKED, body=SIZE + extension + DATA + b"0" + extension + b"\r\n\r\n")
        yield case(
            f"chunk extension {extension[:20]!r}",
            "9112 7.1.1",
            level,
            sent,
            "200 end" if level == MUST else "200 end|400",
        )
    for extension in NO_EXTENSIONS:
        sent = post(CHUNKED, body=SIZE + extension + DATA + LAST + HIDDEN)
        yield case(f"chunk extension {extension!r}", "9112 7.1.1", MUST, sent, "400", behind="400|200 404 end|200 400")
    sent = post(CHUNKED, body=SIZE + b";" + b"a" * 2**20 + DATA + LAST)
    yield case("a chunk extension of 1 MiB", "9112 7.1.1", SHOULD, sent, "400|413|431|200 end")
    small = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY)
    yield case("chunks of one byte", "9112 7.1", MUST, post(CHUNKED, body=small + LAST), "200 end")
    parts = (
        post(CHUNKED, body=SIZE[:1]),
        SIZE[1:] + b"\r",
        b"\n" + BODY[:3],
        BODY[3:] + b"\r",
        b"\n0",
        b"\r\n\r",
        b"\n",
    )
    yield case("chunks cut anywhere", "9112 7.1", MUST, parts, "200 end")


def _ends() -> Iterator[Case]:
    for trailer in TRAILERS:
        sent = post(CHUNKED, body=SIZE + DATA + b"0\r\n" + trailer + b"\r\n\r\n")
        yield case(f"trailer {trailer!r}", "9110 6.5.1", MUST, sent, "200 end|400", behind="200 end|400")
    for trailer in NO_TRAILERS:
        sent = post(CHUNKED, body=SIZE + DATA + b"0\r\n" + trailer + b"\r\n\r\n" + HIDDEN)
        yield case(f"trailer {trailer!r}", "9112 7.1.2", MUST, sent, "400", behind="400|200 404 end|400 404 end")
    for name, body in {
        "no CRLF behind the data": SIZE + b"\r\n" + BODY + LAST,
        "more data than the size": SIZE + b"\r\n" + BODY + b"x\r\n" + LAST,
        "less data than the size": b"ff" + DATA + LAST,
        "LF behind the size": SIZE + b"\n" + BODY + b"\r\n" + LAST,
        "LF behind the data": SIZE + b"\r\n" + BODY + b"\n" + LAST,
        "CR behind the size": SIZE + b"\r" + BODY + b"\r\n" + LAST,
        "two CRLF behind the data": SIZE + DATA + b"\r\n" + LAST,
        "spaces behind the data": SIZE + b"\r\n" + BODY + b"  \r\n" + LAST,
    }.items():
        waits = "ff" in body[:2].decode()
        behind = "-" if waits else "400|200 404 end"
        yield case(
            name, "9112 7.1", MUST, post(CHUNKED, body=body + HIDDEN), "408|400" if waits else "400", behind=behind
        )
    for name, body in {
        "no last chunk": SIZE + DATA,
        "no end of the last chunk": SIZE + DATA + b"0\r\n",
        "no data": b"",
    }.items():
        yield case(name, "9112 8", MUST, post(CHUNKED, body=body), "408|400", end=False, behind="-")
