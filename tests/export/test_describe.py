from __future__ import annotations

from attendant.export import describe


def test_the_table_in_the_docs_is_the_one_in_the_code() -> None:
    assert describe.page() == describe.PAGE.read_text(encoding="utf-8"), "run: python -m attendant.export.describe"
    assert describe.table() in describe.page()
