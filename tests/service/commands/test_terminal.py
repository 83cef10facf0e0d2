"""A server that was started from a terminal ends with it; any other reloads at SIGHUP (test_http_end_to_end.py)."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.serving import wait_for

ROOT = Path(__file__).parents[3]
SERVE = [sys.executable, "-m", "attendant", "serve", "--port", "0"]


class Served:
    """A server and the terminal that it was started from, once it listens."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.process, opened = pty.fork()
        if self.process == 0:
            try:
                os.chdir(ROOT)
                os.execv(SERVE[0], SERVE)
            finally:
                os._exit(1)
        self.terminal: int | None = opened

    def wait_until_it_listens(self) -> None:
        assert self.terminal is not None
        read = b""
        while b"listens on" not in read:
            assert select.select([self.terminal], [], [], 60)[0], read
            read += os.read(self.terminal, 4096)

    def close_terminal(self) -> None:
        if self.terminal is not None:
            os.close(self.terminal)
            self.terminal = None

    def ended(self) -> bool:
        if self.code is None:
            found, status = os.waitpid(self.process, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if found else None
        return self.code is not None


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    try:
        served.wait_until_it_listens()
        yield served
    finally:
        if not served.ended():
            os.kill(served.process, signal.SIGKILL)
            os.waitpid(served.process, 0)
        served.close_terminal()


def test_closing_the_terminal_ends_the_server(served: Served) -> None:
    served.close_terminal()
    wait_for(served.ended)
    assert served.code in (0, -signal.SIGHUP)


def test_sighup_ends_a_server_that_has_a_terminal(served: Served) -> None:
    os.kill(served.process, signal.SIGHUP)
    wait_for(served.ended)
    assert served.code in (0, -signal.SIGHUP)
