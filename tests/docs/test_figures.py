"""Figures of README.md and docs/comparison.md are those of bench/results, and say what they are against."""

from __future__ import annotations

import json
import re
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMPARISON = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
KINDS = ("amd-avx2", "amd-vnni")  # without and with VNNI, as the tables have them


def result(kind: str, name: str) -> Any:
    return json.loads((ROOT / "bench" / "results" / kind / f"{name}.json").read_text(encoding="utf-8"))


def rate(kind: str, name: str, load: str) -> float:
    """Our requests/s over CTranslate2's."""
    rows = result(kind, name)["rows"]
    ours, theirs = (
        next(row["requests_per_second"] for row in rows if row["server"] == server and row["load"] == load)
        for server in ("attendant", "ctranslate2")
    )
    return float(ours / theirs)


def row_of(page: str, first: str) -> list[float]:
    (line,) = re.findall(rf"^\| {re.escape(first)} \| (.*) \|$", page, re.MULTILINE)
    return [float(cell) for cell in line.split(" | ")]


@pytest.mark.parametrize("clients", [1, 8, 32, 64])
def test_ratios_over_http_are_the_measured_ones(clients: int) -> None:
    shown = row_of(COMPARISON, "1 client" if clients == 1 else f"{clients} clients")
    assert shown == pytest.approx([rate(kind, "serving", f"{clients} clients") for kind in KINDS], abs=0.051)


@pytest.mark.parametrize("place", range(4))
def test_ratios_in_one_process_are_the_measured_ones(place: int) -> None:
    rows = [result(kind, "quick")[place] for kind in KINDS]
    assert row_of(COMPARISON, rows[0]["name"]) == pytest.approx([row["ratio"] for row in rows], abs=0.051)


def test_the_figures_of_the_readme_are_the_measured_ones() -> None:
    without, with_vnni = (rate(kind, "serving", "32 clients") for kind in KINDS)
    assert f"[{with_vnni:.1f} times](docs/performance.md#over-http) with VNNI, {without:.1f} times without" in README
    ratios = [row["ratio"] for row in result("amd-vnni", "words")]
    assert f"[{min(ratios):.1f} to {max(ratios):.1f} times]" in README
    started = next(row for row in result("amd-vnni", "start")["rows"] if row["name"] == "embedded")
    ready = f"{Decimal(str(started['ready_seconds'])).quantize(Decimal('0.1'), ROUND_HALF_UP)} s"
    assert f"[ready in {ready}, {started['resident_mb']} MB]" in README


def test_the_small_model_without_vnni_is_as_measured() -> None:
    ratios = [f"{row['ratio']:.1f}" for row in result("amd-avx2", "words")]
    assert f"{', '.join(ratios[:-1])} and {ratios[-1]} times as fast" in " ".join(COMPARISON.split())


def test_the_small_model_over_http_is_as_measured() -> None:
    one, some, many = (rate("amd-vnni", "words_http", f"{clients} clients") for clients in (1, 16, 64))
    wanted = f"it has {some:.2f} of its requests/s with 16 clients, {many:.2f} with 64, and {one:.1f} times"
    assert wanted in " ".join(COMPARISON.split())
