"""A short form of the faults: steps that fail, and a stop, in a service of its own process under load."""

from __future__ import annotations

import sys

import pytest

from bench.reliability import chaos

FAULTS = [
    "steps that raise",
    "NaN from the kernels",
    "no file descriptors",
    "a disk that returns errors",
    "no threads",
    "SIGTERM",
]


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_a_service_is_as_before_after_faults() -> None:
    rows = {row["name"]: row for row in chaos.run(FAULTS, 0.2)}
    assert {name: row["wrong"] for name, row in rows.items()} == {name: [] for name in FAULTS}
    assert rows["steps that raise"]["outcomes"]["500"] > 0  # the faults did happen
    assert rows["a disk that returns errors"]["reloads"]["refused"] > 0
    assert all(row["outcomes"]["200"] > 0 for row in rows.values())
