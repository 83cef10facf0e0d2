"""Connections over real sockets: bounds on headers, trailers, time and number; clients that vanish at any moment."""

from __future__ import annotations

import inspect
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from attendant.service.errors import StartError
from attendant.service.http import connection
from tests.support.fake_engine import FakeEngine
from tests.support.serving import PATIENCE, Running, running, wait_for
from tests.support.sockets import connect, error_type, everything, one_answer

BODY = json.dumps({"inputs": "facade"}).encode()
POST = b"POST /v1/generate HTTP/1.1\r\nHost: x\r\n"
WHOLE = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
MEGABYTE = 2**20


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, FakeEngine]]:
    with running(tmp_path_factory.mktemp("bundle"), api_keys=()) as both:
        yield both


@pytest.fixture
def server(shared: tuple[Running, FakeEngine]) -> Iterator[Running]:
    yield shared[0]
    shared[1].resume()
    assert shared[0].request("POST", "/v1/generate", BODY)[0] == 200  # whatever happened, it still serves


@pytest.fixture
def engine(shared: tuple[Running, FakeEngine]) -> FakeEngine:
    return shared[1]


def sent_before_closed(raw: socket.socket, part: bytes, most: int) -> int:
    """How many bytes the other side takes of endless parts before it closes the connection."""
    count = 0
    try:
        while count < most:
            raw.sendall(part)
            count += len(part)
    except (BrokenPipeError, ConnectionResetError):
        pass
    return count


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("part", [b"X-Trailer: %s\r\n" % (b"a" * 1000), b"a" * 1000])
def test_trailers_are_bounded_also_before_authentication(keyed: bool, part: bytes, tmp_path: Path) -> None:
    with running(tmp_path, api_keys=("key",) if keyed else ()) as (server, engine):
        engine.pause_after = 0  # without a key the answer waits, and the connection with it
        with connect(server) as raw:
            raw.sendall(CHUNKED + b"X: ")
            assert sent_before_closed(raw, part, 64 * MEGABYTE) < 32 * MEGABYTE


def test_small_trailers_are_read_and_dropped(server: Running) -> None:
    with connect(server) as raw:
        raw.sendall(CHUNKED + b"X-Request-Id: from-a-trailer\r\n\r\n")
        answer = one_answer(raw)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"from-a-trailer" not in answer


def test_a_trailer_cannot_bring_the_key(tmp_path: Path) -> None:
    with running(tmp_path, api_keys=("key",)) as (server, _), connect(server) as raw:
        raw.sendall(CHUNKED + b"Authorization: Bearer key\r\n\r\n")
        assert one_answer(raw).startswith(b"HTTP/1.1 401")


def test_many_small_chunks_are_no_trailers(server: Running) -> None:
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY.ljust(100_000))
    with connect(server) as raw:
        raw.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        assert one_answer(raw).startswith(b"HTTP/1.1 200")


OFFER = b"Connection: keep-alive, Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
OFFERED = POST + OFFER + b"Content-Length: %d\r\n\r\n" % len(BODY)


@pytest.mark.parametrize("parts", [(OFFERED + BODY,), (OFFERED[:80], OFFERED[80:], BODY), (WHOLE + OFFERED, BODY)])
def test_an_offer_of_another_protocol_is_declined_and_the_body_read(parts: tuple[bytes, ...], server: Running) -> None:
    with connect(server) as raw:
        for part in parts:
            raw.sendall(part)
            time.sleep(0.05)
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert everything(raw).count(b"HTTP/1.1 200") == b"".join(parts).count(BODY) + 1


def test_a_body_behind_an_offer_is_not_read_as_a_request(server: Running) -> None:
    hidden = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    with connect(server) as raw:
        raw.sendall(POST + OFFER + b"Content-Length: %d\r\n\r\n" % len(hidden))
        time.sleep(0.05)
        raw.sendall(hidden)
        assert error_type(one_answer(raw)) == "invalid_json"
        raw.sendall(WHOLE)
        assert one_answer(raw).startswith(b"HTTP/1.1 200")


def test_many_offers_at_once_are_all_declined(server: Running) -> None:
    with connect(server) as raw:
        raw.sendall((b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + OFFER + b"\r\n") * 1500)
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert everything(raw).count(b"HTTP/1.1 200") == 1501


def test_a_pipelined_request_may_send_its_body_after_the_answer_before(server: Running) -> None:
    with connect(server) as raw:
        raw.sendall(WHOLE + WHOLE.removesuffix(BODY))
        assert one_answer(raw).startswith(b"HTTP/1.1 200")
        raw.sendall(BODY)
        assert one_answer(raw).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("sent", [b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", b"what is this\r\n\r\n"])
def test_what_is_no_request_is_told_so_in_the_documented_form(sent: bytes, server: Running) -> None:
    with connect(server) as raw:
        raw.sendall(sent)
        answer = everything(raw)
        assert answer.startswith(b"HTTP/1.1 400")
        assert error_type(answer) == "invalid_http"


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("bundle"), header_seconds=0.5, body_seconds=0.5, api_keys=()) as (server, _):
        yield server


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"POST /v1/gen", POST, WHOLE + POST])
def test_headers_that_do_not_come_end_the_connection(sent: bytes, impatient: Running) -> None:
    with connect(impatient) as raw:
        raw.sendall(sent)
        answers = everything(raw)
    assert answers.startswith(b"HTTP/1.1 200") == sent.startswith(WHOLE)
    last = answers[answers.rfind(b"HTTP/1.1") :]
    if sent.endswith((b"gen", POST)):
        assert last.startswith(b"HTTP/1.1 408")
        assert error_type(last) == "header_timeout"


def test_an_idle_connection_is_not_kept_by_empty_lines(impatient: Running) -> None:
    with connect(impatient) as raw:
        raw.sendall(WHOLE)
        assert one_answer(raw).startswith(b"HTTP/1.1 200")
        raw.sendall(b"\r\n")
        assert everything(raw) == b""


@pytest.mark.parametrize("head", [b"Content-Length: 1000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n5\r\n"])
@pytest.mark.parametrize("start", [b"", b"{"])
def test_a_body_that_does_not_come_is_408_and_ends_the_connection(
    head: bytes, start: bytes, impatient: Running
) -> None:
    with connect(impatient) as raw:
        raw.sendall(POST + head + start)
        answer = everything(raw)
    assert answer.startswith(b"HTTP/1.1 408")
    assert error_type(answer) == "body_timeout"
    assert b"connection: close" in answer


def test_a_request_that_runs_longer_than_headers_may_take_is_answered(tmp_path: Path) -> None:
    with running(tmp_path, header_seconds=1.0) as (server, engine), connect(server) as raw:
        engine.pause_after = 1
        raw.sendall(WHOLE + POST)  # and the beginning of another one, whose turn has not come
        wait_for(engine.count_running)
        with connect(server) as other:
            assert everything(other) == b""  # by now the headers' time is over
        engine.resume()
        assert one_answer(raw).startswith(b"HTTP/1.1 200")


def test_the_rest_of_a_refused_body_is_not_waited_for(tmp_path: Path) -> None:
    with running(tmp_path, api_keys=("key",)) as (server, _), connect(server) as raw:
        raw.sendall(POST + b"Content-Length: 1000\r\n\r\n{")
        assert everything(raw).startswith(b"HTTP/1.1 401")


def test_connections_over_the_bound_are_answered_503_and_closed(tmp_path: Path) -> None:
    with running(tmp_path, max_connections=3) as (server, _), ExitStack() as stack:
        kept = [stack.enter_context(connect(server)) for _ in range(3)]
        for raw in kept:
            raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert one_answer(raw).startswith(b"HTTP/1.1 200")
        with connect(server) as over:
            over.sendall(WHOLE)
            answer = everything(over)
        assert answer.startswith(b"HTTP/1.1 503")
        assert error_type(answer) == "too_many_connections"
        assert b"retry-after: 1\r\n" in answer
        with connect(server) as silent:
            assert everything(silent).startswith(b"HTTP/1.1 503")
        with connect(server) as probe:
            probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert everything(probe).startswith(b"HTTP/1.1 200")  # a kubelet must not end a process that is busy
        kept[1].sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"\nattendant_connections_refused_total 3.0\n" in one_answer(kept[1])
        kept[0].sendall(WHOLE)
        assert one_answer(kept[0]).startswith(b"HTTP/1.1 200")  # the others are not disturbed
        stack.close()
        wait_for(lambda: server.request("GET", "/healthz")[0] == 200)


def test_probes_are_answered_as_ever_above_the_bound(tmp_path: Path) -> None:
    with running(tmp_path, max_connections=1) as (server, _), connect(server) as kept:
        kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert one_answer(kept).startswith(b"HTTP/1.1 200")
        with ExitStack() as stack:
            for _ in range(3):  # as many as are kept for probes may wait here, and say nothing
                stack.enter_context(connect(server))
            for ready, status, text in ((True, b"200", b'{"status":"ready"}'), (False, b"503", b"not_ready")):
                if not ready:
                    server.server.models.refuse()
                with connect(server) as probe:
                    probe.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
                    answer = everything(probe)
                assert answer.startswith(b"HTTP/1.1 " + status)
                assert text in answer


STREAMED = json.dumps({"inputs": "facade", "stream": True}).encode()
COMPLETION = json.dumps(
    {"model": "fake", "prompt": ["cat", "dog"], "n": 2, "temperature": 1.0, "stream": True}
).encode()


def post(path: bytes, body: bytes) -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (path, len(body), body)


@pytest.mark.parametrize("pause", [0, 2])  # as it waits in the queue; after some tokens
@pytest.mark.parametrize(
    ("sent", "tasks"),
    [
        (WHOLE, 1),
        (post(b"/v1/generate", STREAMED), 1),
        (post(b"/v1/completions", COMPLETION), 4),
        (post(b"/v1/next-token", b'{"source": "cat"}'), 1),
        (WHOLE + WHOLE, 1),  # pipelined: the second one never begins
    ],
)
def test_a_client_that_vanishes_leaves_nothing_running(
    pause: int, sent: bytes, tasks: int, server: Running, engine: FakeEngine
) -> None:
    if b"next-token" in sent:
        pause = 0
    engine.pause_after = pause
    before = engine.cancelled
    raw = connect(server)
    raw.sendall(sent)
    wait_for(lambda: engine.count_running() == tasks)
    raw.close()
    wait_for(lambda: engine.cancelled == before + tasks)
    assert engine.count_running() == 0
    wait_for(lambda: server.server.app.state.traffic.active == 0)


@pytest.mark.parametrize("sent", [POST, POST + b"Content-Length: 1000\r\n\r\n{", CHUNKED, WHOLE])
def test_a_client_that_vanishes_at_once_leaves_nothing_running(
    sent: bytes, server: Running, engine: FakeEngine
) -> None:
    engine.pause_after = 0
    for _ in range(20):
        _send_and_reset(server, sent)
    wait_for(lambda: server.server.app.state.traffic.active == 0 and engine.count_running() == 0)
    wait_for(lambda: not server.server.server_state.connections)


def _send_and_reset(server: Running, sent: bytes) -> None:
    raw = connect(server)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")  # close by a reset
    raw.sendall(sent)
    raw.close()


def test_a_client_that_does_not_read_its_answers_is_let_go(tmp_path: Path) -> None:
    large = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n"
    with running(tmp_path, send_seconds=0.2) as (server, _), connect(server) as raw:
        raw.sendall(large * 30)  # more than the buffers of both sides hold
        wait_for(lambda: server.server.app.state.traffic.active == 1)
        wait_for(lambda: not server.server.server_state.connections)  # `active` is 0 between two requests, too
        assert len(everything(raw)) < 30 * MEGABYTE


def test_a_client_that_reads_slowly_gets_its_whole_answer(tmp_path: Path) -> None:
    """All in all it takes longer than it may stand still."""
    large = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n"
    pause, reads = 0.02, 0
    with running(tmp_path, send_seconds=0.5) as (server, _), socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MEGABYTE // 8)  # or the system would read it all at once
        raw.settimeout(PATIENCE)
        raw.connect(("127.0.0.1", server.port))
        raw.sendall(large)
        expected = 12 * len(one_answer(raw))
        raw.sendall(large * 12)
        found = 0
        while found < expected:
            part = raw.recv(MEGABYTE // 4)
            assert part, "it was closed"
            found += len(part)
            reads += 1
            time.sleep(pause)
    assert reads * pause > 2 * 0.5


MOVED = f"uvicorn {uvicorn.__version__} has moved a part that service/http/connection.py rests on"


def test_what_is_overridden_of_uvicorn_is_there_and_listed() -> None:
    theirs = {
        name: list(inspect.signature(method).parameters)[1:]
        for name, method in inspect.getmembers(HttpToolsProtocol, inspect.isfunction)
    }
    own = {name for name in vars(connection.BoundedProtocol) if not name.startswith("__")}
    assert own & theirs.keys() == connection.OVERRIDDEN.keys(), MOVED
    assert {name: theirs[name] for name in connection.OVERRIDDEN} == connection.OVERRIDDEN, MOVED


def test_what_is_read_of_uvicorn_is_there(server: Running, engine: FakeEngine) -> None:
    engine.pause_after = 0
    with connect(server) as raw:
        raw.sendall(WHOLE)
        wait_for(engine.count_running)
        (protocol,) = [each for each in server.server.server_state.connections if each.cycle is not None]
        missing = [name for name in (*connection.CALLED, *connection.READ) if not hasattr(protocol, name)]
        missing += [name for name in connection.READ_OF_CYCLE if not hasattr(protocol.cycle, name)]
        assert not missing, MOVED
        engine.resume()
        one_answer(raw)


def test_a_uvicorn_that_has_moved_a_part_is_refused_at_the_start() -> None:
    class Moved:
        data_received = on_body = on_header = None

    with pytest.raises(StartError, match=r"uvicorn [\d.]+ has no _start_asgi_task, .*; install another version"):
        connection.check_uvicorn(Moved)
