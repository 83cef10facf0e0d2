"""A model of the Python API on the stand-in engine that also answers over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from attendant import Model
from attendant.service.commands import generate
from tests.support.serving import Service, in_process


@pytest.fixture
def http(tmp_path: Path) -> Iterator[Service]:
    with in_process(tmp_path / "bundle") as service:
        yield service


@pytest.fixture
def model(http: Service, monkeypatch: pytest.MonkeyPatch) -> Model:
    """On the engine that also answers over HTTP."""
    monkeypatch.setattr(generate, "load_engine", lambda _: http.engine)
    return Model()
