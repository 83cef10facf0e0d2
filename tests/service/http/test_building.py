"""Long answers are built only as long as someone waits for them."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attendant.service.errors import CancelledError, DeadlineError
from attendant.service.http import responses
from attendant.service.http.building import LEAST_SECONDS, THREADS, Builder, extended
from attendant.service.http.responses import PIECE, pieces
from attendant.service.requests import content
from attendant.service.requests.content import Check, encode, encode_long, no_check
from tests.support.serving import PATIENCE, running, wait_for


class Client:
    """An ASGI `receive` of a client that stays until it is told to leave."""

    def __init__(self) -> None:
        self._left = asyncio.Event()

    async def receive(self) -> Any:
        await self._left.wait()
        return {"type": "http.disconnect"}

    def leave(self) -> None:
        self._left.set()


def in_loop(main: Callable[[Builder], Any]) -> None:
    builder = Builder()
    try:
        asyncio.run(main(builder))
    finally:
        builder.close()


def test_what_is_built_is_answered() -> None:
    async def main(builder: Builder) -> None:
        assert await builder.run(lambda check: [check(), 7], None, Client().receive) == [None, 7]
        assert await builder.run(lambda _: 8, time.monotonic() + 3600, Client().receive) == 8
        with pytest.raises(ZeroDivisionError):
            await builder.run(lambda _: 1 / 0, None, Client().receive)

    in_loop(main)


def test_building_ends_when_the_client_leaves() -> None:
    begun, ended = threading.Event(), threading.Event()

    def build(check: Check) -> None:
        begun.set()
        try:
            while True:
                check()
                time.sleep(0.001)
        finally:
            ended.set()

    async def main(builder: Builder) -> None:
        client = Client()
        waiting = asyncio.create_task(builder.run(build, None, client.receive))
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        client.leave()
        with pytest.raises(CancelledError):
            await waiting
        assert await asyncio.to_thread(ended.wait, PATIENCE)

    in_loop(main)


def test_building_ends_at_the_deadline() -> None:
    begun, ended = threading.Event(), threading.Event()

    def build(check: Check) -> None:
        begun.set()
        try:
            while True:
                check()
                time.sleep(0.001)
        finally:
            ended.set()

    async def main(builder: Builder) -> None:
        with pytest.raises(DeadlineError, match="raise timeout_ms"):
            await builder.run(build, time.monotonic() + 0.2, Client().receive)
        if begun.is_set():  # else its turn did not come in time
            assert await asyncio.to_thread(ended.wait, PATIENCE)

    in_loop(main)


def test_what_waits_for_its_turn_is_late_or_dropped_without_being_begun() -> None:
    may_go_on, begun = threading.Event(), []

    def hold(_: Check) -> None:
        assert may_go_on.wait(PATIENCE)

    async def main(builder: Builder) -> None:
        client = Client()
        held = [asyncio.create_task(builder.run(hold, None, Client().receive)) for _ in range(THREADS)]
        await asyncio.sleep(0)
        dropped = asyncio.create_task(builder.run(lambda _: begun.append(1), None, client.receive))
        late = asyncio.create_task(builder.run(lambda _: begun.append(2), time.monotonic() + 0.01, Client().receive))
        with pytest.raises(DeadlineError):
            await late
        client.leave()
        with pytest.raises(CancelledError):
            await dropped
        may_go_on.set()
        await asyncio.gather(*held)

    in_loop(main)
    assert not begun


def test_an_answer_cut_short_has_time_to_be_written() -> None:
    now = time.monotonic()
    assert extended(None) is None
    assert extended(now + 3600) == now + 3600
    assert (extended(now - 1) or 0) >= now + LEAST_SECONDS


def test_long_answers_are_encoded_as_short_ones_are() -> None:
    rows = [{"id": index, "logprob": -float("inf") if index == 3 else -0.5} for index in range(1000)]
    for value in (rows, rows[:256], [], [[1, 2], []]):
        whole = {"a": "é", "rows": value, "none": None, "entropy": float("nan")}
        assert b"".join(encode_long(whole, no_check)) == encode(whole)
        assert b"".join(encode_long({"rows": iter(value)}, no_check)) == encode({"rows": value})


def test_what_is_sent_is_what_was_built_some_at_a_time() -> None:
    parts = [b"a" * 10, b"", b"b" * 200_000, b"c"] * 3
    whole = b"".join(parts)
    found = list(pieces(parts))
    assert b"".join(found) == whole
    assert max(map(len, found)) < 2 * PIECE
    assert not parts


def test_encoding_asks_now_and_then_whether_to_go_on() -> None:
    def check() -> None:
        raise CancelledError

    with pytest.raises(CancelledError):
        encode_long({"rows": [1] * 10_000}, check)


def test_answers_of_clients_that_left_are_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built, may_go_on = [], threading.Event()

    def hold(*given: Any) -> Any:
        built.append(1)
        assert may_go_on.wait(PATIENCE)
        return top_tokens(*given)

    top_tokens = content.top_tokens
    monkeypatch.setattr(responses, "LONG_RESPONSE", 1)
    monkeypatch.setattr(content, "top_tokens", hold)
    body = json.dumps({"source": "cat", "top_k": 0}).encode()
    request = b"POST /v1/next-token HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    with running(tmp_path) as (server, _):
        clients = [socket.create_connection(("127.0.0.1", server.port), PATIENCE) for _ in range(20)]
        try:
            for client in clients:
                client.sendall(request)
            traffic = server.server.app.state.traffic
            wait_for(lambda: traffic.active == len(clients) and len(built) == THREADS)
        finally:
            for client in clients:
                client.close()
        wait_for(lambda: traffic.active == 0)
        may_go_on.set()
        assert server.request("POST", "/v1/next-token", {"source": "cat", "top_k": 0})[0] == 200
        assert len(built) == THREADS + 1
