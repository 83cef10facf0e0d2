"""The notebook of examples/, cell by cell, against a service of the embedded model."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.browsing import serving

NOTEBOOK = Path(__file__).parents[2] / "examples" / "inside_a_head.ipynb"


def test_the_notebook_runs_and_finds_the_heads_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with serving() as process, contextlib.redirect_stdout(printed):
        monkeypatch.setenv("ATTENDANT_ADDRESS", f"http://127.0.0.1:{process.port}")
        for cell in cells:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)
    assert "looks at" in printed.getvalue()
    assert len(names["losses"]) == 4 * (4 + 2 + 2)
    assert max(names["losses"].values()) > 0.5
