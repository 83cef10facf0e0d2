"""Answers that leave slowly: a client that reads on gets all of it, one that stands still is let go and counted."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.serving import PATIENCE, Running, running, wait_for
from tests.support.sockets import everything

LARGE = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"  # more than a megabyte
BUFFER = 2**15  # bytes that the system takes of an answer, so that most of it waits in the process


@contextmanager
def connection_with_small_buffers(server: Running) -> Iterator[socket.socket]:
    server.listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)  # the accepted connection has it too
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        raw.settimeout(PATIENCE)
        raw.connect(("127.0.0.1", server.port))
        yield raw


def counted(server: Running, outcome: str) -> float:
    line = f'attendant_requests_total{{endpoint="other",model="",outcome="{outcome}"}} '
    text = server.request("GET", "/metrics")[1].decode()
    return float(text.partition(line)[2].partition("\n")[0])


def test_a_client_that_reads_steadily_gets_the_whole_of_one_large_answer(tmp_path: Path) -> None:
    """It takes several times as long as a client may stand still."""
    still, pause, found, reads = 0.8, 0.03, b"", 0
    with running(tmp_path, send_seconds=still) as (server, _), connection_with_small_buffers(server) as raw:
        raw.sendall(LARGE)
        while part := raw.recv(BUFFER // 4):
            found += part
            reads += 1
            time.sleep(pause)
        head, _, body = found.partition(b"\r\n\r\n")
        assert reads * pause > 2 * still
        assert len(body) == int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        assert counted(server, "unsent") == 0


def test_an_answer_that_is_not_read_is_counted_as_unsent(tmp_path: Path) -> None:
    with running(tmp_path, send_seconds=0.2) as (server, _), connection_with_small_buffers(server) as raw:
        raw.sendall(LARGE)
        wait_for(lambda: counted(server, "unsent"))
        assert counted(server, "unsent") == 1
        assert len(everything(raw)) < 2**20


def test_a_client_that_leaves_in_the_middle_of_its_answer_is_counted_as_unsent(tmp_path: Path) -> None:
    with running(tmp_path) as (server, _):
        with connection_with_small_buffers(server) as raw:
            raw.sendall(LARGE)
            raw.recv(100)
        wait_for(lambda: counted(server, "unsent"))


def test_a_request_counts_as_active_until_its_answer_has_left(tmp_path: Path) -> None:
    with running(tmp_path) as (server, _), connection_with_small_buffers(server) as raw:
        raw.sendall(LARGE)
        raw.recv(100)
        time.sleep(0.2)
        assert server.server.app.state.traffic.active == 1
        everything(raw)
        wait_for(lambda: server.server.app.state.traffic.active == 0)


def test_a_connection_is_not_idle_while_its_answer_is_being_read(tmp_path: Path) -> None:
    """Its next request is answered, although the answer before took longer than an idle connection is kept."""
    with running(tmp_path, keep_alive_seconds=1) as (server, _), connection_with_small_buffers(server) as raw:
        raw.sendall(LARGE.replace(b"Connection: close\r\n", b""))
        raw.recv(100)
        time.sleep(1.3)
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert everything(raw).count(b"HTTP/1.1 200 OK") == 1  # the first one's status line was read above


def test_a_closed_connection_with_a_small_rest_that_nobody_reads_ends(tmp_path: Path) -> None:
    """A rest below the limit from which on writing pauses: nothing else would ever end it."""
    with running(tmp_path, send_seconds=0.2, keep_alive_seconds=1) as (server, _):
        state = server.server.server_state
        wait_for(lambda: not state.connections)
        with connection_with_small_buffers(server) as raw:
            for count in range(1, 100):
                raw.sendall(b"GET /page/style.css HTTP/1.1\r\nHost: x\r\n\r\n")
                wait_for(lambda count=count: state.total_requests >= count)
                if sum(each.transport.get_write_buffer_size() for each in state.connections):
                    break
            wait_for(lambda: not state.connections)
