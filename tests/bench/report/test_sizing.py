"""What a load takes, from what one server does; and docs/scaling.md has what the command makes of the results."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from bench.report.sizing import MEASURED, PAGE, RATE, rewritten, section, sizes

RECORD: dict[str, Any] = json.loads(MEASURED.read_text(encoding="utf-8"))


def test_the_table_of_the_page_is_what_the_command_makes() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert rewritten(page, section(RECORD, RATE)) == page


@pytest.mark.parametrize("rate", [1.0, 1000.0, RATE])
def test_what_is_left_when_a_third_fails_still_carries_the_load(rate: float) -> None:
    for size in sizes(RECORD, rate, spare=1 / 3):
        assert (size.replicas * 2 / 3) * size.rate >= rate * (1 - 1e-9)
        assert (size.replicas - 1) * 2 / 3 * size.rate < rate


def test_without_spare_replicas_a_load_takes_what_it_takes() -> None:
    rate = RECORD["rows"][0]["requests_per_second"]
    assert next(iter(sizes(RECORD, 3 * rate, spare=0.0))).replicas == 3


def test_twice_the_load_costs_the_same_per_request() -> None:
    for one, two in zip(sizes(RECORD, RATE), sizes(RECORD, 2 * RATE), strict=True):
        assert two.core_hours == pytest.approx(one.core_hours, rel=1e-3)
        assert two.in_flight == pytest.approx(2 * one.in_flight, abs=1)
        assert math.isclose(two.memory, 2 * one.memory, rel_tol=1e-3)


def test_only_the_service_s_own_rows_count() -> None:
    ours = [row for row in RECORD["rows"] if row["server"] == "attendant" and "way" not in row]
    assert [size.load for size in sizes(RECORD, RATE)] == [row["load"] for row in ours]
