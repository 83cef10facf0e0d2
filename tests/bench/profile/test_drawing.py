"""The benchmark of the page's first drawing."""

from __future__ import annotations

import pytest

from bench.profile import drawing
from bench.report import sections
from bench.report.record import facts
from tests.support.browsing import MISSING


def test_the_median_is_held_to_the_goal() -> None:
    rows = [drawing.row("drawing", [60.0, 130.0, 110.0]), drawing.row("files", [230.0] * 3)]
    assert [(row["median"], row["most"], row["goal"]) for row in rows] == [(110.0, 130.0, 100.0), (230.0, 230.0, 300.0)]
    text = sections.drawing({"rows": rows, **facts("bench.profile.drawing")})
    assert "| from the answer to the first frame | 110 ms | 130 ms | 100 ms | no |" in text
    assert "| all files of the page | 230 kB | 230 kB | 300 kB | yes |" in text


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_the_map_of_64_tokens_is_drawn_with_everything_in_it() -> None:
    rows = {row["name"]: row for row in drawing.measure(1)}
    assert rows["drawing"]["most"] > 0
    assert rows["answer"]["most"] > 0
    assert 100 < rows["files"]["most"] <= rows["files"]["goal"]
