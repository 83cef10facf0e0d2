from __future__ import annotations

import os

import pytest

from attendant.common.cpus import allowed_cpus


def test_the_processors_are_those_of_the_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 3, 5}, raising=False)
    assert allowed_cpus() == 3


def test_a_system_without_affinity_tells_its_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert allowed_cpus() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert allowed_cpus() == 1
