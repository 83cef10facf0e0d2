"""docs/reliability.md is what the results say."""

from __future__ import annotations

from bench.reliability.report import OPERATIONS, PAGE, page, with_memory
from bench.report.record import RESULTS


def test_the_page_is_made_from_the_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(RESULTS)


def test_the_table_of_memory_is_made_from_the_results() -> None:
    written = OPERATIONS.read_text(encoding="utf-8")
    assert written == with_memory(written, RESULTS)
