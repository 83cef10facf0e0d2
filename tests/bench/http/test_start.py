"""The benchmark of the service's start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.http import start
from bench.http.servers import Server


def test_the_shortest_start_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([1.4, 0.8, 1.0])

    @contextlib.contextmanager
    def fake(_: list[str]) -> Iterator[Server]:
        server = Server(None, 0, next(seconds))  # type: ignore[arg-type]
        monkeypatch.setattr(Server, "memory", lambda _: {"resident": 100_000_000, "peak": 150_000_000})
        yield server

    monkeypatch.setattr(start, "serving", fake)
    row = start.measure("base", Path("bundle"), 3)
    assert (row["ready_seconds"], row["median_seconds"], row["resident_mb"]) == (0.8, 1.0, 100)
    assert row["goal"] == 1.0


def test_the_embedded_model_starts() -> None:
    row = start.measure("embedded", start.EMBEDDED, 1)
    assert row["ready_seconds"] > 0
    assert row["peak_mb"] >= row["resident_mb"] > 30
