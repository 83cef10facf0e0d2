from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendant.model.checkpoint import TrainedModel
from attendant.model.errors import ConfigError, DataError
from attendant.model.evaluation.evaluate import edit_distance, error_rates, evaluate_run, table, text_error_rates
from attendant.model.text.tokenizer import learn
from tests.support.small_models import make_model

words = st.lists(st.sampled_from("abc"), max_size=6)


@pytest.mark.parametrize(
    ("a", "b", "edits"), [("", "", 0), ("abc", "", 3), ("abc", "abc", 0), ("kitten", "sitting", 3), ("ab", "ba", 2)]
)
def test_edit_distance_of_known_pairs(a: str, b: str, edits: int) -> None:
    assert edit_distance(a, b) == edits


@given(words, words, words)
def test_edit_distance_is_a_distance(a: list[str], b: list[str], c: list[str]) -> None:
    assert edit_distance(a, b) == edit_distance(b, a)
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)


def test_any_listed_reference_counts_as_right() -> None:
    rates = error_rates([["a", "b"], ["c"]], [[["x"], ["a", "b"]], [["d"], ["c", "d", "e"]]])
    assert rates.sequence == 50
    assert rates.token == pytest.approx(100 * 1 / 3)  # 0 edits over 2 tokens, 1 edit over the nearest reference's 1


def test_what_is_ignored_is_taken_out_of_both_sides() -> None:
    outputs, references = ["AA0 B"], [["AA1 B"]]
    assert text_error_rates(outputs, references, str.split, None).sequence == 100
    assert text_error_rates(outputs, references, str.split, re.compile("[0-9]")).sequence == 0


def trained(kind: str) -> TrainedModel:
    source, target = learn("chars", ["abc"]), learn(kind, ["a b c"])
    model = make_model(source_vocab=source.size, target_vocab=target.size, max_length=8)
    return TrainedModel(model.config, model, source, target)


def test_a_report_has_its_rates_and_its_table(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("ab\ta b\nab\tb a\nc\tc\n", encoding="utf-8")
    report = evaluate_run(trained("words"), tmp_path / "test.tsv", 2, 1.0, ignore="a")
    assert report["sources"] == 2
    assert set(report["ignoring"]) == {"pattern", "sequence_error_rate", "token_error_rate"}
    assert "bleu" not in report
    assert "2 sources, beam 2" in table(report)
    assert "without a" in table(report)


def test_running_text_gets_bleu_and_chrf(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("ab\ta b c a\nab\tb a\nc\tc\n", encoding="utf-8")
    report = evaluate_run(trained("bpe:300"), tmp_path / "test.tsv", 1, 1.0, None)
    assert 0 <= report["bleu"] <= 100
    assert "chrf" in table(report)


def test_a_source_too_long_for_the_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("abcabcabc\ta\n", encoding="utf-8")
    with pytest.raises(DataError, match="has 9 tokens, and the model reads 7"):
        evaluate_run(trained("words"), tmp_path / "test.tsv", 1, 1.0, None)


def test_an_ignore_that_is_no_regular_expression_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--ignore takes a regular expression"):
        evaluate_run(trained("words"), tmp_path / "test.tsv", 1, 1.0, "[")
