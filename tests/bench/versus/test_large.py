"""The benchmark of a large model, with a tiny one."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from bench.models import peers
from bench.models.random_model import LARGE, Shape, prepare
from bench.versus import large, race
from bench.versus.race import UnequalError

TINY = Shape(vocabulary=300, d_model=32, d_ff=64, heads=4, layers=2, max_length=64)
needs_peer = pytest.mark.skipif(importlib.util.find_spec("ctranslate2") is None, reason="CTranslate2 is not installed")


def test_the_shape_is_that_of_nllb_600m() -> None:
    assert (LARGE.layers, LARGE.d_model, LARGE.d_ff, LARGE.heads, LARGE.vocabulary) == (12, 1024, 4096, 16, 256_206)


@needs_peer
def test_our_int8_is_raced_with_all_four_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command with its flags, and what it writes."""
    monkeypatch.setattr(large, "prepare", lambda shape: prepare(shape, tmp_path))
    monkeypatch.setattr(race, "LEAST_ROUNDS", 1)
    flags = ["--vocabulary=300", "--d-model=32", "--d-ff=64", "--heads=4", "--layers=2", "--length=6", "--seconds=0"]
    monkeypatch.setattr(sys, "argv", ["large", *flags, "--threads=2", f"--out={tmp_path / 'large.json'}"])
    large.main()
    record = json.loads((tmp_path / "large.json").read_text(encoding="utf-8"))
    assert record["shape"]["vocabulary"] == 300
    *works, memory = record["rows"]
    assert [row["name"] for row in works] == ["1 request, greedy", "1 request, beam 4", "8 requests, beam 4"]
    for row in works:
        assert {side: [*times] for side, times in row["by_precision"].items()} == {
            "ctranslate2": ["fp32", "int8"],
            "ctranslate2_two_workers": ["fp32", "int8"],
            "ours": ["int8"],
        }
    assert (memory["name"], memory["unit"], memory["goal"]) == (large.MEMORY, "MB", 1.0)


@needs_peer
def test_other_tokens_in_f32_are_refused_before_anything_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(TINY, tmp_path)
    other = prepare(Shape(**{**vars(TINY), "seed": 2}), tmp_path)
    convert = peers.prepare_peer
    monkeypatch.setattr(peers, "prepare_peer", lambda _, out: convert(other.run, out))
    monkeypatch.setattr(large, "race", lambda *_: pytest.fail("timed"))
    with pytest.raises(UnequalError, match="nothing was timed"):
        large.measure(prepared, large.works(6), 2, 0.0)
