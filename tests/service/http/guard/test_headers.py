"""Headers that HTTP wants refused, over raw sockets: no client library sends them."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator

import pytest

from tests.support.serving import Running, running
from tests.support.sockets import connect, error_type, everything, one_answer

KEY = b"Authorization: Bearer key\r\n"
HOST = b"Host: x\r\n"
BODY = json.dumps({"inputs": "facade"}).encode()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("bundle"), api_keys=("key",)) as (server, _):
        yield server


def answer_to(server: Running, sent: bytes) -> bytes:
    with connect(server) as raw:
        raw.sendall(sent)
        return one_answer(raw)


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1])


def post(headers: bytes, body: bytes = BODY, version: bytes = b"1.1") -> bytes:
    return b"POST /v1/generate HTTP/" + version + b"\r\n" + headers + b"\r\n" + body


NO_HOSTS = [b"", b"Host:\r\n", b"Host: x\r\nHost: x\r\n", b"Host: user@h\r\n", b"Host: h/path\r\n", b"Host: a, b\r\n"]
NO_HOSTS += [b"Host: a b\r\n", b"Host: h:port\r\n", b"Host: h:80:80\r\n", b"Host: [::1\r\n", b"Host: \xc3\xa9\r\n"]
NO_HOSTS += [b"Host: h?q\r\n", b"Host: h#f\r\n", b"Host: :80\r\n", b"Host: x\r\nhOST: y\r\n"]


@pytest.mark.parametrize("host", NO_HOSTS)
@pytest.mark.parametrize("path", [b"/healthz", b"/v1/info", b"/nothing"])
def test_a_request_without_one_good_host_is_refused(host: bytes, path: bytes, server: Running) -> None:
    answer = answer_to(server, b"GET " + path + b" HTTP/1.1\r\n" + KEY + host + b"\r\n")
    assert status(answer) == 400
    assert error_type(answer) == "invalid_http"
    assert b"\r\nx-request-id: " in answer


@pytest.mark.parametrize(
    "host", [b"h", b"h:8000", b"h:", b"127.0.0.1:1", b"[::1]:80", b"[::1]", b"a_b.example", b"a-1.b", b"%41"]
)
def test_a_good_host_is_taken(host: bytes, server: Running) -> None:
    assert status(answer_to(server, b"GET /healthz HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")) == 200


def test_http_1_0_may_lack_the_host(server: Running) -> None:
    assert status(answer_to(server, b"GET /healthz HTTP/1.0\r\n\r\n")) == 200


def test_http_1_0_may_not_have_two_hosts(server: Running) -> None:
    assert status(answer_to(server, b"GET /healthz HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n")) == 400


def test_an_absolute_target_without_a_path_is_the_page(server: Running) -> None:
    for target in (b"http://host", b"http://host:80", b"HTTP://host?a=b"):
        answer = answer_to(server, b"GET " + target + b" HTTP/1.1\r\nHost: host\r\n\r\n")
        assert status(answer) == 200
        assert b"content-type: text/html" in answer


@pytest.mark.parametrize(
    "twice",
    [
        KEY + b"Authorization: Bearer wrong\r\n",
        b"Authorization: Bearer wrong\r\n" + KEY,
        KEY + KEY,
        KEY + b"Content-Encoding: gzip\r\nContent-Encoding: identity\r\n",
    ],
)
def test_a_header_that_may_come_once_is_refused_twice(twice: bytes, server: Running) -> None:
    answer = answer_to(server, post(HOST + LENGTH + twice))
    assert status(answer) == 400
    assert error_type(answer) == "invalid_http"


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"deflate,chunked", b"gzip\r\nTransfer-Encoding: chunked"])
def test_a_transfer_coding_that_is_not_known_is_501(coding: bytes, server: Running) -> None:
    answer = answer_to(server, post(HOST + KEY + b"Transfer-Encoding: " + coding + b"\r\n", CHUNKS))
    assert status(answer) == 501
    assert error_type(answer) == "unsupported_transfer_encoding"
    assert b"\r\nconnection: close\r\n" in answer


@pytest.mark.parametrize("coding", [b"chunked", b"Chunked", b" chunked "])
def test_a_chunked_body_is_read(coding: bytes, server: Running) -> None:
    headers = HOST + KEY + b"Transfer-Encoding: " + coding + b"\r\n"
    assert status(answer_to(server, post(headers, CHUNKS))) == 200


def test_a_chunked_body_of_http_1_0_is_refused(server: Running) -> None:
    """HTTP/1.0 knows no chunks: a proxy in between may have taken its end for another one."""
    headers = HOST + KEY + b"Transfer-Encoding: chunked\r\n"
    assert status(answer_to(server, post(headers, CHUNKS, b"1.0"))) == 400


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_only_http_1_1_is_told_to_continue(version: bytes, server: Running) -> None:
    with connect(server) as raw:
        raw.sendall(post(HOST + KEY + LENGTH + b"Expect: 100-continue\r\nConnection: close\r\n", b"", version))
        if version == b"1.1":
            assert raw.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        else:
            time.sleep(0.1)
        raw.sendall(BODY)
        assert everything(raw).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("path", [b"/v1/generate", b"/v1/completions", b"/v2/models/fake/infer"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_body_that_is_not_utf_8_is_refused(path: bytes, encoding: str, packed: bool, server: Running) -> None:
    body = BODY.decode().encode(encoding)
    body = gzip.compress(body) if packed else body
    coding = b"Content-Encoding: gzip\r\n" if packed else b""
    headers = HOST + KEY + coding + b"Content-Length: %d\r\n" % len(body)
    answer = answer_to(server, post(headers, body).replace(b"/v1/generate", path))
    assert status(answer) == 400
    assert b"UTF-8" in answer


def test_a_body_with_a_byte_order_mark_of_utf_8_is_read(server: Running) -> None:
    body = b"\xef\xbb\xbf" + BODY
    answer = answer_to(server, post(HOST + KEY + b"Content-Length: %d\r\n" % len(body), body))
    assert status(answer) == 200
