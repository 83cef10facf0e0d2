"""A server that was started from a terminal ends with it; any other reloads at SIGHUP (test_http_end_to_end.py)."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SERVE = [sys.executable, "-m", "attendant", "serve", "--port", "0"]


@pytest.fixture
def terminal() -> tuple[int, int]:
    """The process of a server and the terminal that it was started from, once it listens."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        os.execv(SERVE[0], SERVE)
    read = b""
    while b"listens on" not in read:
        assert select.select([terminal], [], [], 60)[0], read
        read += os.read(terminal, 4096)
    return process, terminal


def exit_code(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def test_closing_the_terminal_ends_the_server(terminal: tuple[int, int]) -> None:
    process, opened = terminal
    os.close(opened)
    assert exit_code(process) in (0, -signal.SIGHUP)


def test_sighup_ends_a_server_that_has_a_terminal(terminal: tuple[int, int]) -> None:
    process, opened = terminal
    os.kill(process, signal.SIGHUP)
    assert exit_code(process) in (0, -signal.SIGHUP)
    os.close(opened)
