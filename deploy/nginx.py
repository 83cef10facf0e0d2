"""Runs nginx with deploy/proxies/nginx.conf on ports of this machine, as whoever runs it."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

CONFIGURATION = Path(__file__).parent / "proxies" / "nginx.conf"
PATHS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
PATIENCE = 10.0  # seconds to start


def program() -> str | None:
    """Debian installs it where only root's PATH looks."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


@contextlib.contextmanager
def nginx(servers: Sequence[int]) -> Iterator[int]:
    """The port at which nginx listens, in front of servers at these ports."""
    found = program()
    assert found is not None
    with tempfile.TemporaryDirectory() as directory:
        port = free_port()
        Path(directory, "nginx.conf").write_text(_whole(configuration(servers, port)), encoding="utf-8")
        command = [found, "-p", directory, "-c", "nginx.conf", "-e", "stderr"]
        with until_ended(command, port, Path(directory, "log")):
            yield port


def configuration(servers: Sequence[int], port: int) -> str:
    """The committed file with other ports."""
    text = CONFIGURATION.read_text(encoding="utf-8")
    for committed, own in zip((8001, 8002), servers, strict=True):
        text = re.sub(rf"\b127\.0\.0\.1:{committed}\b", f"127.0.0.1:{own}", text)
    return re.sub(r"listen 127\.0\.0\.1:8000;", f"listen 127.0.0.1:{port};", text)


def _whole(text: str) -> str:
    temporary = "".join(f"{name}_temp_path {name};" for name in PATHS)
    return f"daemon off; pid nginx.pid; events {{}} http {{ access_log off; {temporary} {text} }}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def until_ended(command: list[str], port: int, log: Path) -> Iterator[None]:
    """A proxy that listens. What it says goes to a file: a pipe that nobody reads would stop it when it is full."""
    with log.open("wb") as said:
        process = subprocess.Popen(command, stderr=said)
    try:
        _wait_until_it_listens(port, process, log)
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _wait_until_it_listens(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    process.kill()
    raise RuntimeError(f"{process.args[0]} does not listen: {log.read_text(encoding='utf-8')}")  # type: ignore[index]
