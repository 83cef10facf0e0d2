"""What is no HTTP behind requests that were accepted: they are answered in order, then it is 400, and the end."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_engine import FakeEngine
from tests.support.serving import Running, running, wait_for
from tests.support.sockets import connect, error_type, everything

BODY = json.dumps({"inputs": "facade"}).encode()
POST = b"POST /v1/generate HTTP/1.1\r\nHost: x\r\n"
WHOLE = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
BROKEN_CHUNK = POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"
ENDLESS = b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 300_000  # more than headers may have


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, FakeEngine]]:
    with running(tmp_path_factory.mktemp("bundle")) as both:
        yield both


@pytest.fixture
def server(shared: tuple[Running, FakeEngine]) -> Iterator[Running]:
    yield shared[0]
    shared[1].resume()
    assert shared[0].request("POST", "/v1/generate", BODY)[0] == 200  # whatever happened, it still serves


def statuses(answers: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d+) ", answers)]


def last(answers: bytes) -> bytes:
    return answers[answers.rfind(b"HTTP/1.1 ") :]


@pytest.mark.parametrize("garbage", [b"garbage\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00", b"{}"])
@pytest.mark.parametrize("accepted", [[WHOLE], [GET], [WHOLE, GET, WHOLE]])
def test_the_accepted_are_answered_before_the_malformed(accepted: list[bytes], garbage: bytes, server: Running) -> None:
    with connect(server) as raw:
        raw.sendall(b"".join(accepted) + garbage)
        answers = everything(raw)
    assert statuses(answers) == [200] * len(accepted) + [400]
    assert error_type(last(answers)) == "invalid_http"


def test_an_accepted_one_that_runs_is_not_disturbed_by_garbage_that_comes_later(
    server: Running, shared: tuple[Running, FakeEngine]
) -> None:
    engine = shared[1]
    engine.pause_after = 1
    with connect(server) as raw:
        raw.sendall(WHOLE)
        wait_for(engine.count_running)
        raw.sendall(b"garbage\r\n\r\n")
        time.sleep(0.1)
        raw.sendall(b"and more of it")
        engine.resume()
        answers = everything(raw)
    assert statuses(answers) == [200, 400]


def test_a_body_that_breaks_off_is_400_in_its_place(server: Running) -> None:
    with connect(server) as raw:
        raw.sendall(WHOLE + BROKEN_CHUNK)
        time.sleep(0.05)
        raw.sendall(b"zzzzzzzzzz")
        assert statuses(everything(raw)) == [200, 400]


def test_a_body_that_breaks_off_behind_one_that_runs_is_never_begun(
    server: Running, shared: tuple[Running, FakeEngine]
) -> None:
    engine = shared[1]
    engine.pause_after = 1
    before = engine.submissions
    with connect(server) as raw:
        raw.sendall(WHOLE + BROKEN_CHUNK + b"zzzzzzzzzz")
        wait_for(engine.count_running)
        engine.resume()
        assert statuses(everything(raw)) == [200, 400]
    assert engine.submissions == before + 1
    wait_for(lambda: server.server.app.state.traffic.active == 0)


def test_headers_without_end_behind_an_accepted_one_are_431_after_its_answer(server: Running) -> None:
    with connect(server) as raw:
        raw.sendall(WHOLE + ENDLESS)
        assert statuses(everything(raw)) == [200, 431]


def test_nothing_behind_the_malformed_is_read(server: Running) -> None:
    with connect(server) as raw:
        raw.sendall(GET + b"garbage\r\n\r\n" + GET + WHOLE)
        assert statuses(everything(raw)) == [200, 400]


def test_what_follows_a_request_that_closes_is_not_answered(server: Running) -> None:
    with connect(server) as raw:
        raw.sendall(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + b"garbage\r\n\r\n")
        assert statuses(everything(raw)) == [200]


def test_a_client_that_leaves_after_its_garbage_leaves_nothing_running(
    server: Running, shared: tuple[Running, FakeEngine]
) -> None:
    engine = shared[1]
    engine.pause_after = 1
    with connect(server) as raw:
        raw.sendall(WHOLE + b"garbage\r\n\r\n")
        wait_for(engine.count_running)
    wait_for(lambda: engine.count_running() == 0)
    wait_for(lambda: server.server.app.state.traffic.active == 0)


def test_every_answer_of_a_connection_has_a_request_id_and_a_date(tmp_path: Path) -> None:
    with running(tmp_path, max_connections=1, header_seconds=0.3) as (server, _):
        sent = {b"garbage\r\n\r\n": 400, b"GET / HTTP/1.1\r\nX": 408, ENDLESS: 431}
        for request, status in sent.items():
            wait_for(lambda: not server.server.server_state.connections)
            with connect(server) as raw:
                raw.sendall(request)
                answer = everything(raw)
            assert statuses(answer) == [status]
            assert re.search(rb"\r\nx-request-id: [0-9a-f]{24}\r\ndate: [^\r]+ GMT\r\n", answer)
        wait_for(lambda: not server.server.server_state.connections)
        with connect(server):
            wait_for(lambda: server.server.server_state.connections)
            for request in (WHOLE, GET):  # the one is refused, the other, a probe, is answered
                with connect(server) as over:
                    over.sendall(request)
                    assert re.search(rb"\r\nx-request-id: [0-9a-f]{24}\r\ndate: [^\r]+ GMT\r\n", everything(over))


def test_a_body_that_is_broken_where_the_client_waits_to_be_told_to_continue_is_400(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    expecting = BROKEN_CHUNK.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
    for sent in (expecting, expecting.replace(b"Host: x\r\n", b"")):
        with connect(server) as raw:
            raw.sendall(sent + b"zzzzzzzzzz")
            assert statuses(everything(raw)) == [400]
    wait_for(lambda: server.server.app.state.traffic.active == 0)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_many_malformed_requests_are_one_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path) as (server, _):
        for _ in range(30):
            with connect(server) as raw:
                raw.sendall(b"garbage\r\n\r\n")
                answer = everything(raw)
            assert statuses(answer) == [400]
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [record.getMessage() for record in warnings] == ["what is no HTTP/1.1 was refused"]
    assert getattr(warnings[0], "fields", None) is not None  # so it is written by the log's own thread
