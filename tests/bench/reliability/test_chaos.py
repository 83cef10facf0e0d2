"""A short form of the faults: steps that fail, and a stop, in a service of its own process under load."""

from __future__ import annotations

import sys

import pytest

from bench.reliability import chaos


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_a_service_is_as_before_after_faults() -> None:
    rows = list(chaos.run(["steps that raise", "NaN from the kernels", "no file descriptors", "SIGTERM"], 0.2))
    assert {row["name"]: row["wrong"] for row in rows} == {row["name"]: [] for row in rows}
    assert rows[0]["outcomes"]["500"] > 0  # the fault did happen
    assert all(row["outcomes"]["200"] > 0 for row in rows)
