"""Over HTTP, what clients make the service hold is bounded in sum, whatever they send and however little they read."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from attendant.service.http import responses
from attendant.service.http.guard import body as bodies
from attendant.service.memory import MemoryAccount
from tests.support.serving import PATIENCE, Running, in_process, running, wait_for

SMALL = {"memory_megabytes": 100, "max_connections": 100}  # which leaves 5 MB for requests


def account_of(server: Running) -> MemoryAccount:
    account: MemoryAccount = server.server.app.state.parts.memory
    return account


def head(length: int, *lines: bytes) -> bytes:
    return b"\r\n".join([b"POST /v1/generate HTTP/1.1", b"host: h", b"content-length: %d" % length, *lines, b"", b""])


@contextmanager
def clients(server: Running, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), PATIENCE)) for _ in range(count)
        ]


def status_of(client: socket.socket) -> int:
    return int(client.makefile("rb").readline().split()[1])


def test_bodies_that_arrive_are_bounded_in_sum(tmp_path: Path) -> None:
    with running(tmp_path, **SMALL) as (server, _), clients(server, 60) as arriving:
        account = account_of(server)
        length = account.capacity // bodies.PARSING
        for client in arriving:
            client.sendall(head(length) + b" " * (length - 10))
        refused = account.capacity // (2 * length)
        assert refused < len(arriving)
        statuses = [status_of(client) for client in arriving[-5:]]
        assert statuses == [429] * 5
        assert account.held <= account.capacity
        assert server.request("POST", "/v1/generate", {"inputs": "cat"})[0] == 200  # what is small is still served
    wait_for(lambda: account.held == 0)


def test_bodies_that_are_small_only_as_sent_are_bounded_in_sum(tmp_path: Path) -> None:
    with running(tmp_path, **SMALL) as (server, _), clients(server, 60) as arriving:
        account = account_of(server)
        length = account.capacity // bodies.PARSING
        body = gzip.compress(b" " * (length - 10))
        for client in arriving:
            client.sendall(head(len(body), b"content-encoding: gzip") + body[:-4])
        assert [status_of(client) for client in arriving[-5:]] == [429] * 5
        assert account.held <= account.capacity
    wait_for(lambda: account.held == 0)


def test_a_refusal_for_memory_says_when_to_try_again(tmp_path: Path) -> None:
    with in_process(tmp_path, **SMALL) as service:
        account = service.client.app.state.parts.memory  # type: ignore[attr-defined]
        with account.holding(account.capacity - 1000):
            answer = service.generate(inputs="a" * 10_000)
        assert answer.status_code == 429, answer.text
        assert answer.headers["retry-after"] == "1"
        assert "try again in 1 s" in answer.json()["error"]["message"]
        assert service.generate().status_code == 200


def test_with_little_memory_the_largest_body_is_smaller(tmp_path: Path) -> None:
    with in_process(tmp_path, **SMALL) as service:
        account = service.client.app.state.parts.memory  # type: ignore[attr-defined]
        length = account.capacity // bodies.PARSING
        answer = service.client.post("/v1/generate", content=b" " * (length + 1))
        assert answer.status_code == 413
        assert f"at most {length} bytes" in answer.json()["error"]["message"]


def test_an_answer_that_nobody_reads_is_counted_until_its_client_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "LONG_RESPONSE", 1)
    monkeypatch.setattr(responses, "encode_long", lambda *_: [b" " * 10**6] * 12)
    body = json.dumps({"source": "cat", "top_k": 0}).encode()
    request = b"POST /v1/next-token HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    with running(tmp_path, memory_megabytes=1000) as (server, _):
        account = account_of(server)
        with clients(server, 1) as (client,):
            client.sendall(request)
            wait_for(lambda: account.held >= 12 * 10**6)
            assert server.server.app.state.traffic.active == 1
        wait_for(lambda: account.held == 0 and not server.server.app.state.traffic.active)
        received = server.request("POST", "/v1/next-token", {"source": "cat", "top_k": 0})
        assert received == (200, b" " * 12 * 10**6 + b"\n")


def test_a_whole_vocabulary_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "LONG_RESPONSE", 1)
    with in_process(tmp_path, **SMALL) as service:
        account = service.client.app.state.parts.memory  # type: ignore[attr-defined]
        answer: Any
        with account.holding(account.capacity - 100):
            monkeypatch.setattr(responses, "TOKEN_BYTES", 10_000)
            answer = service.post("/v1/next-token", source="cat", top_k=0)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        monkeypatch.setattr(responses, "TOKEN_BYTES", 10**7)
        answer = service.post("/v1/next-token", source="cat", top_k=0)
        assert answer.status_code == 422
        assert "MB are left for requests here" in answer.json()["error"]["message"]
