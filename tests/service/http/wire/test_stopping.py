"""Connections at a stop: whoever is connected when the listener closes is answered, not reset."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from attendant.service.http import connection
from tests.support.serving import PATIENCE, Running, running, wait_for
from tests.support.sockets import connect, everything, one_answer

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/generate HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n" + b'{"inputs": "cat"}'


@contextmanager
def held_before_it_closes(server: Running) -> Iterator[None]:
    """The server has begun to stop, and its event loop stands still, so that nothing is accepted or read."""
    reached, go_on, shutdown = threading.Event(), threading.Event(), server.server.shutdown

    async def held(*arguments: Any, **named: Any) -> None:
        reached.set()
        assert go_on.wait(PATIENCE)
        await shutdown(*arguments, **named)

    server.server.shutdown = held  # type: ignore[method-assign]
    server.stop()
    assert reached.wait(PATIENCE)
    try:
        yield
    finally:
        go_on.set()


@pytest.mark.parametrize("sent", [GET, POST])
def test_whoever_is_in_the_accept_queue_is_answered(sent: bytes, tmp_path: Path) -> None:
    with running(tmp_path) as (server, _), ExitStack() as stack:
        with held_before_it_closes(server):
            waiting = [stack.enter_context(connect(server)) for _ in range(40)]
            for raw in waiting:
                raw.sendall(sent)
        answers = [everything(raw) for raw in waiting]
        expected = b"HTTP/1.1 200" if sent == GET else b"HTTP/1.1 503"
        assert [answer[:12] for answer in answers] == [expected] * 40
        assert all(b"\r\nconnection: close\r\n" in answer for answer in answers)


def test_whoever_connected_and_sends_its_request_a_little_later_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "FIRST_SECONDS", 4.0)
    with running(tmp_path) as (server, _), ExitStack() as stack:
        accepted = stack.enter_context(connect(server))
        with held_before_it_closes(server):
            queued = stack.enter_context(connect(server))
        wait_for(lambda: server.listening.fileno() < 0)  # the listener is closed
        for raw in (accepted, queued):
            raw.sendall(POST)
            assert everything(raw).startswith(b"HTTP/1.1 503")


def test_a_request_that_arrived_on_a_kept_connection_is_answered(tmp_path: Path) -> None:
    with running(tmp_path) as (server, _), connect(server) as raw:
        raw.sendall(GET)
        one_answer(raw)
        with held_before_it_closes(server):
            raw.sendall(POST)
        assert everything(raw).startswith(b"HTTP/1.1 503")


def test_connections_over_the_limit_in_the_accept_queue_are_answered(tmp_path: Path) -> None:
    with running(tmp_path, max_connections=2) as (server, _), ExitStack() as stack:
        with held_before_it_closes(server):
            waiting = [stack.enter_context(connect(server)) for _ in range(4)]
            for raw in waiting:
                raw.sendall(POST)
        assert [everything(raw)[:12] for raw in waiting] == [b"HTTP/1.1 503"] * 4


def test_silent_connections_do_not_hold_up_the_stop(tmp_path: Path) -> None:
    with running(tmp_path) as (server, _), connect(server), connect(server) as kept, ExitStack() as stack:
        kept.sendall(GET)
        one_answer(kept)
        with held_before_it_closes(server):
            stack.enter_context(connect(server))
        server.join()


def test_nobody_can_connect_after_the_stop(tmp_path: Path) -> None:
    with running(tmp_path) as (server, _):
        server.stop()
        server.join()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), PATIENCE)
