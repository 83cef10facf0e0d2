"""docs/reliability.md is what the results say."""

from __future__ import annotations

from bench.reliability.report import PAGE, page
from bench.report.record import RESULTS


def test_the_page_is_made_from_the_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(RESULTS)
