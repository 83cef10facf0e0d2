"""Request lines that HTTP/1.1 wants refused, and what is lenient in others' parsers, over raw sockets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.support.serving import Running, running
from tests.support.sockets import connect, error_type, everything, one_answer

BODY = json.dumps({"inputs": "facade"}).encode()
POST = b"POST /v1/generate HTTP/1.1\r\nHost: x\r\n"
WHOLE = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = b"Content-Length: %d\r\n" % len(BODY)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("bundle")) as (server, _):
        yield server


def ended(server: Running, sent: bytes) -> bytes:
    """All that is answered until the connection is closed."""
    with connect(server) as raw:
        raw.sendall(sent)
        return everything(raw)


def statuses(answers: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d+) ", answers)]


def line(target: bytes, method: bytes = b"GET", version: bytes = b"HTTP/1.1") -> bytes:
    return method + b" " + target + b" " + version + b"\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("before", [[], [GET], [WHOLE, WHOLE]])
@pytest.mark.parametrize("size", [70_000, 200_000])
def test_a_target_that_is_too_long_is_told_so_after_the_requests_before_it(
    size: int, before: list[bytes], server: Running
) -> None:
    answers = ended(server, b"".join(before) + line(b"/" + b"a" * size))
    assert statuses(answers) == [200] * len(before) + [431]
    assert error_type(answers[answers.rfind(b"HTTP/1.1 ") :]) == "headers_too_large"


@pytest.mark.parametrize("version", [b"HTTP/0.9", b"HTTP/2.0"])
def test_another_version_is_not_answered_as_if_it_were_1_1(version: bytes, server: Running) -> None:
    answer = ended(server, line(b"/healthz", version=version))
    assert statuses(answer) == [505]
    assert error_type(answer) == "unsupported_version"


def test_a_request_without_a_version_is_not_answered_as_if_it_had_one(server: Running) -> None:
    assert statuses(ended(server, b"GET /healthz\r\n\r\n")) == [505]


@pytest.mark.parametrize(
    "target",
    [b"/healthz#part", b"http://u:p@h/healthz", b"ftp://h/healthz", b"http://h:port/healthz", b"http://h#f", b"*"],
)
def test_a_target_in_no_form_of_http_is_refused(target: bytes, server: Running) -> None:
    answers = ended(server, GET + line(target))
    assert statuses(answers) == [200, 400]


@pytest.mark.parametrize("target", [b"http://h/healthz", b"HTTPS://h:1/healthz?a=b", b"/healthz?a=/b?c", b"/%68ealthz"])
def test_a_target_in_a_form_of_http_is_taken(target: bytes, server: Running) -> None:
    with connect(server) as raw:
        raw.sendall(line(target))
        assert statuses(one_answer(raw)) == [200]


def test_headers_of_one_name_by_the_thousand_are_refused_and_not_slow(server: Running) -> None:
    with connect(server) as raw:
        raw.sendall(GET[:-2] + b"a:b\r\n" * 20_000 + b"\r\n")
        assert statuses(one_answer(raw)) in ([200], [431])


AMBIGUOUS = {
    "both lengths": LENGTH + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "both lengths, turned": b"Transfer-Encoding: chunked\r\n" + LENGTH + b"\r\n" + CHUNKS,
    "two lengths": LENGTH + b"Content-Length: 3\r\n\r\n" + BODY,
    "the same length twice": LENGTH + LENGTH + b"\r\n" + BODY,
    "a list of lengths": b"Content-Length: 20, 20\r\n\r\n" + BODY,
    "a signed length": b"Content-Length: +20\r\n\r\n" + BODY,
    "a length in hex": b"Content-Length: 0x14\r\n\r\n" + BODY,
    "an empty length": b"Content-Length:\r\n\r\n" + BODY,
    "a space before the colon": b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKS,
    "a folded coding": b"Transfer-Encoding:\r\n chunked\r\n\r\n" + CHUNKS,
    "a folded length": b"Content-Length:\r\n 20\r\n\r\n" + BODY,
    "a tab of another kind": b"Transfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKS,
    "not chunked at last": b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKS,
    "chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "almost chunked": b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS,
    "a size with a sign": b"Transfer-Encoding: chunked\r\n\r\n+" + CHUNKS,
    "a size in C": b"Transfer-Encoding: chunked\r\n\r\n0x" + CHUNKS,
    "a size that overflows": b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n" + BODY,
    "lines that end with LF": b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS.replace(b"\r\n", b"\n"),
    "LF in an extension": b"Transfer-Encoding: chunked\r\n\r\n14;a\nb\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a length in the trailers": b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS[:-2] + b"Content-Length: 5\r\n\r\n",
    "CR alone in a value": b"X: a\rb\r\n" + LENGTH + b"\r\n" + BODY,
    "zero in a value": b"X: a\0b\r\n" + LENGTH + b"\r\n" + BODY,
}


@pytest.mark.parametrize("headers", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_a_body_whose_end_is_in_doubt_is_refused_and_nothing_behind_it_is_read(headers: bytes, server: Running) -> None:
    """Whoever is in front may see another end: what follows might be a request that it never saw."""
    assert statuses(ended(server, GET + POST + headers + GET)) == [200, 400]
