"""The server over real sockets: huge input, clients that leave, and an end that loses nothing."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from attendant.service.errors import StartError
from attendant.service.http.server import bind
from tests.support.fake_engine import FakeEngine, make_bundle
from tests.support.serving import PATIENCE, Running, events_of, running, wait_for

BODY = {"inputs": "facade"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, FakeEngine]]:
    with running(tmp_path_factory.mktemp("bundle")) as both:
        yield both


@pytest.fixture
def server(shared: tuple[Running, FakeEngine]) -> Iterator[Running]:
    yield shared[0]
    shared[1].resume()
    assert shared[0].request("POST", "/v1/generate", BODY)[0] == 200  # whatever happened, it still serves


@pytest.fixture
def engine(shared: tuple[Running, FakeEngine]) -> FakeEngine:
    return shared[1]


def metric(server: Running, line: str) -> float:
    _, text = server.request("GET", "/metrics")
    return float(next(found for found in text.decode().splitlines() if found.startswith(line)).split()[-1])


def test_it_says_where_it_listens_and_what_it_serves(server: Running) -> None:
    assert server.lines == [f"Attendant listens on http://127.0.0.1:{server.port}: model fake, fp32 on cpu, 1 thread."]


def test_a_body_of_100_mb_is_answered_before_it_is_read(server: Running) -> None:
    connection = server.connect()
    connection.putrequest("POST", "/v1/generate")
    connection.putheader("Content-Length", str(100_000_000))
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 413
    assert json.loads(answer.read())["error"]["type"] == "body_too_large"
    connection.close()


def test_one_who_sends_a_refused_body_to_the_end_gets_the_answer_too(server: Running) -> None:
    status, text = server.request("POST", "/v1/generate", b" " * 20_000_000)
    assert status == 413
    assert b"at most 1048576 bytes are taken" in text


def test_a_header_of_100_kb_is_refused_and_a_larger_one_too(server: Running) -> None:
    status, text = server.request("GET", "/healthz", **{"X-Big": "a" * 100_000})
    assert status == 431
    assert b"headers_too_large" in text
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nX-Big: " + b"a" * 300_000)
        assert raw.recv(100).startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"POST /v1/generate HTTP/9.9\r\n\r\n"]
)
def test_what_is_not_http_is_refused(garbage: bytes, server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as raw:
        raw.sendall(garbage + b"\r\n\r\n")
        assert raw.recv(1000).startswith((b"HTTP/1.1 4", b"HTTP/1.1 5"))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_place(stream: bool, server: Running, engine: FakeEngine) -> None:
    before = engine.cancelled
    line = 'attendant_requests_total{endpoint="/v1/generate",model="fake",outcome="cancelled"}'
    counted = metric(server, line)
    engine.pause_after = 2
    connection = server.connect()
    connection.request("POST", "/v1/generate", json.dumps({**BODY, "stream": stream}))
    wait_for(engine.count_running)
    if stream:
        connection.getresponse().read(10)
    connection.close()
    wait_for(lambda: engine.cancelled == before + 1)
    wait_for(lambda: metric(server, line) == counted + 1)
    assert engine.count_running() == 0


def test_tokens_arrive_before_the_answer_is_whole(server: Running, engine: FakeEngine) -> None:
    engine.pause_after = 2
    connection = server.connect()
    connection.request("POST", "/v1/generate", json.dumps({**BODY, "stream": True}))
    answer = connection.getresponse()
    first = [answer.readline() for _ in range(6)]
    assert sum(line.startswith(b"event: token") for line in first) == 2
    engine.resume()
    events = events_of(b"".join([*first, answer.read()]).decode())
    assert [name for name, _ in events] == ["token"] * 6 + ["done"]
    connection.close()


def test_an_error_after_the_stream_began_is_an_event(server: Running, engine: FakeEngine) -> None:
    line = 'attendant_requests_total{endpoint="/v1/generate",model="fake",outcome="internal_error"}'
    counted = metric(server, line)
    engine.pause_after = 2
    connection = server.connect()
    connection.request("POST", "/v1/generate", json.dumps({**BODY, "stream": True}))
    answer = connection.getresponse()
    start = answer.readline()
    engine.failure = RuntimeError("boom")
    try:
        name, data = events_of((start + answer.read()).decode())[-1]
    finally:
        engine.failure = None
    assert (answer.status, name) == (200, "error")
    assert data["error"]["type"] == "internal_error"
    assert "boom" not in data["error"]["message"]
    wait_for(lambda: metric(server, line) == counted + 1)
    connection.close()


def test_a_connection_is_kept_and_used_again_also_after_errors(server: Running) -> None:
    connection = server.connect()
    for body, status in ((BODY, 200), ({"inputs": ""}, 422), (BODY, 200)):
        connection.request("POST", "/v1/generate", json.dumps(body))
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status
    connection.close()


def test_at_a_stop_the_accepted_finish_the_new_are_refused_and_then_it_ends(tmp_path: Path) -> None:
    with running(tmp_path, grace_seconds=PATIENCE) as (server, engine), ThreadPoolExecutor(4) as pool:
        engine.pause_after = 1
        asked = [pool.submit(server.request, "POST", "/v1/generate", BODY) for _ in range(4)]
        wait_for(lambda: engine.count_running() == 4)
        server.stop()
        wait_for(lambda: server.request("GET", "/readyz")[0] == 503)
        status, text = server.request("POST", "/v1/generate", BODY)
        assert (status, json.loads(text)["error"]["type"]) == (503, "not_ready")
        assert server.request("GET", "/healthz")[0] == 200
        engine.resume()
        assert [future.result()[0] for future in asked] == [200] * 4
        server.join()
        with pytest.raises(ConnectionRefusedError):
            server.request("GET", "/healthz")


def test_what_does_not_finish_within_the_grace_period_is_told_so(tmp_path: Path) -> None:
    with running(tmp_path, grace_seconds=0.2) as (server, engine), ThreadPoolExecutor(1) as pool:
        engine.pause_after = 1
        asked = pool.submit(server.request, "POST", "/v1/generate", BODY)
        wait_for(engine.count_running)
        server.stop()
        status, text = asked.result()
        assert (status, json.loads(text)["error"]["type"]) == (503, "not_ready")
        server.join()


def test_a_hangup_reloads(tmp_path: Path) -> None:
    names = iter(["first", "second"])

    def load(_: Path | None) -> Any:
        name = next(names)
        engine = FakeEngine(make_bundle(tmp_path / name, name))
        engine.start()
        return engine

    server = Running(load)
    try:
        wait_for(lambda: server.lines)
        assert b'"model":"first"' in server.request("GET", "/v1/info")[1]
        server.server.handle_hangup(1, None)
        wait_for(lambda: b'"model":"second"' in server.request("GET", "/v1/info")[1])
    finally:
        server.stop()
        server.join()


def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_sentence() -> None:
    def load(_: Path | None) -> Any:
        raise StartError("the certificate drifts by 0.5.")

    server = Running(load)
    server.join()
    assert isinstance(server.failure, StartError)
    assert not server.lines


def test_a_port_in_use_is_a_sentence() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=rf"port {port} of 127\.0\.0\.1 is in use; choose another with --port"):
            bind("127.0.0.1", port)


def test_an_address_that_is_not_here_is_a_sentence() -> None:
    with pytest.raises(StartError, match=r"cannot listen on 192\.0\.2\.1, port 0: .+; see --host and --port"):
        bind("192.0.2.1", 0)


def test_a_host_that_can_be_no_name_is_told_so() -> None:
    with pytest.raises(StartError, match=r"cannot listen on '\.\.': it is no name of a host; see --host"):
        bind("..", 0)


def test_whoever_is_refused_by_a_server_that_stops_is_not_kept_on_its_connection(tmp_path: Path) -> None:
    """A balancer of connections would send the next request to the same server."""
    with running(tmp_path) as (server, engine):
        engine.pause_after = 1
        with ThreadPoolExecutor() as pool:
            accepted = pool.submit(server.request, "POST", "/v1/generate", BODY)
            wait_for(lambda: engine.submissions)
            kept = server.connect()
            kept.request("GET", "/healthz")
            kept.getresponse().read()
            server.stop()
            wait_for(lambda: server.server.models.draining)
            kept.request("POST", "/v1/generate", json.dumps(BODY))
            answer = kept.getresponse()
            assert (answer.status, answer.getheader("connection")) == (503, "close")
            answer.read()
            kept.close()
            engine.resume()
            assert accepted.result()[0] == 200
