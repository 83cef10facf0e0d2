"""Servers under measurement: each a process on a free port of 127.0.0.1, ended when it has been measured."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.http.client import Connection, ProtocolError, get
from bench.versus.worker import memory_of

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
READY_WITHIN = 120.0  # seconds
GRACE = 10.0  # seconds to end in, when told to


class Server:
    """A running server."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, ready_seconds: float) -> None:
        self.process, self.port = process, port
        self.ready_seconds = ready_seconds  # from the process's start to its first ready answer

    def memory(self) -> dict[str, int]:
        """Resident bytes, now and at most."""
        return memory_of(self.process.pid)


@contextlib.contextmanager
def serving(arguments: list[str], environment: dict[str, str] | None = None) -> Iterator[Server]:
    """`python ARGUMENTS --port FREE`, from when it is ready until the block ends."""
    port = free_port()
    command = [sys.executable, *arguments, "--port", str(port)]
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **(environment or {})})
    try:
        asyncio.run(_wait_until_ready(process, port))
        yield Server(process, port, time.perf_counter() - started)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


async def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + READY_WITHIN
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with code {process.returncode} before it was ready; see above.")
        with contextlib.suppress(OSError, ProtocolError):
            connection = await Connection.open(HOST, port)
            try:
                response = await asyncio.wait_for(connection.request(get("/readyz", HOST, port)), 5.0)
                if response.status == 200:
                    return
            finally:
                connection.close()
        await asyncio.sleep(0.01)
    raise RuntimeError(f"the server was not ready within {READY_WITHIN:.0f} seconds.")


def attendant(bundle: Path | None = None, precision: str = "auto", threads: int = 0) -> list[str]:
    """The service, as a user starts it, but every request is computed, also where an equal one is in flight."""
    arguments = ["-m", "attendant", "serve", "--host", HOST, "--log-level", "warning", "--share-in-flight", "false"]
    arguments += ["--bundle", str(bundle)] if bundle is not None else []
    return [*arguments, "--precision", precision, "--threads", str(threads)]


def ctranslate2(model: Path, precision: str, workers: int, threads: int) -> list[str]:
    """CTranslate2 behind a thin app."""
    arguments = ["-m", "bench.http.ct2_server", "--model", str(model), "--precision", precision]
    return [*arguments, "--workers", str(workers), "--threads", str(threads)]
