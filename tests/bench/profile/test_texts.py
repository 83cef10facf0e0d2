"""The benchmark of whole texts, with a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench.models.random_model import Shape, prepare
from bench.profile import texts

TINY = Shape(vocabulary=300, d_model=32, d_ff=64, heads=4, layers=2, max_length=64)


def test_every_way_answers_all_sentences_and_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "prepare", lambda _: prepare(TINY, tmp_path))
    out = tmp_path / "texts.json"
    monkeypatch.setattr(sys, "argv", ["texts", "--sentences=20", "--turns=1", f"--out={out}"])
    texts.main()
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [row["way"] for row in rows] == ["bulk", "lines", "sentences", "html"]
    assert [row["splitting_seconds"] is None for row in rows] == [True, True, False, False]
    assert len({row["words"] for row in rows}) == 1


def test_the_sentences_of_the_text_are_those_of_the_lines() -> None:
    from attendant.service.documents.splitting import split

    sentences = texts.make_sentences(40, 300)
    text = texts.paragraphs(sentences)
    assert [text[start:stop] for start, stop in split(text, "sentences", "en")] == sentences
