"""Runs HAProxy with deploy/proxies/haproxy.cfg on ports of this machine, as whoever runs it."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy.nginx import free_port, until_ended

CONFIGURATION = Path(__file__).parent / "proxies" / "haproxy.cfg"


def program() -> str | None:
    """Debian installs it where only root's PATH looks."""
    return shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")


@contextlib.contextmanager
def haproxy(servers: Sequence[int]) -> Iterator[int]:
    """The port at which HAProxy listens, in front of servers at these ports."""
    found = program()
    assert found is not None
    with tempfile.TemporaryDirectory() as directory:
        port, file = free_port(), Path(directory, "haproxy.cfg")
        file.write_text(configuration(servers, port), encoding="utf-8")
        with until_ended([found, "-db", "-q", "-f", str(file)], port, Path(directory, "log")):
            yield port


def configuration(servers: Sequence[int], port: int) -> str:
    """The committed file with other ports."""
    text = CONFIGURATION.read_text(encoding="utf-8")
    for committed, own in zip((8001, 8002, 8000), (*servers, port), strict=True):
        text = re.sub(rf"\b127\.0\.0\.1:{committed}\b", f"127.0.0.1:{own}", text)
    return text
