"""What every test has: passive OpenMP threads, signals that children hear, and a writer of small corpora."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from attendant import kernels

if sanitized := os.environ.get("ATTENDANT_SANITIZED_LIBRARY"):  # of tests.kernels.sanitized
    kernels.FILE = Path(sanitized)

# Threads of OpenMP that spin while they wait make a test take minutes wherever another process uses the processors.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# nohup ignores SIGHUP, a shell's background job SIGINT, and children inherit that. A handler that does nothing ignores
# the signal here just as well, and a child starts with the default.
for ignored in (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT)):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, lambda *_: None)


@pytest.fixture
def write_tsv(tmp_path: Path) -> Callable[..., Path]:
    def write(*lines: str, name: str = "corpus.tsv") -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return write
