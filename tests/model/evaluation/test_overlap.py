from __future__ import annotations

import sys

import pytest

from attendant.model.evaluation.evaluate import table
from attendant.model.evaluation.overlap import overlap, tokenizations

ZH, JA, KO, TH = "今天天气很好。", "今日はとても天気がいいです。", "오늘은 날씨가 매우 좋습니다.", "วันนี้อากาศดีมาก"
EN = "the weather is very fine today."


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (ZH, ["zh"]), (JA, ["ja-mecab", "char"]), (KO, ["ko-mecab", "char"]), (TH, ["char"]), (EN, ["13a"]),
        ("Погода сегодня хорошая", ["13a"]), ("12 - 7", ["13a"]), (f"{EN} {EN} (好)", ["13a"]), (f"{ZH} ok", ["zh"]),
    ],
)  # fmt: skip
def test_the_tokenization_follows_the_script(text: str, names: list[str]) -> None:
    assert tokenizations([text]) == names


@pytest.mark.parametrize("text", [ZH, JA, KO, TH, EN])
def test_a_corpus_that_is_fully_right_scores_100(text: str) -> None:
    found = overlap([text, text], [[text], [text, "x"]])
    assert found["bleu"] == pytest.approx(100)
    assert found["chrf"] == pytest.approx(100)
    assert f"|tok:{'13a' if text == EN else 'zh' if text == ZH else 'char'}|" in found["bleu_signature"]
    assert "nrefs:var" in found["chrf_signature"]


def test_bleu_is_left_out_where_no_reference_has_four_tokens() -> None:
    assert "bleu" not in overlap(["好", "a b"], [["好"], ["a b"]])
    assert overlap(["a", "b"], [["a b c d"], ["b"]])["bleu"] == 0  # wrong, and said so


def test_the_signatures_are_printed() -> None:
    report = {"data": "x", "sources": 1, "beam_size": 1, "sequence_error_rate": 0.0, "token_error_rate": 0.0}
    found = overlap([ZH], [[ZH]])
    printed = table(report | found)
    assert found["bleu_signature"] in printed
    assert found["chrf_signature"] in printed


def test_without_sacrebleu_there_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("sacrebleu")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    assert "pip install sacrebleu" in overlap([EN], [[EN]])["overlap_note"]
