from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendant.model.checkpoint import TrainedModel
from attendant.model.evaluation.evaluate import edit_distance
from attendant.model.search.reference import greedy
from attendant.model.text.tokenizer import learn
from bench.default_model.analysis import Answer, analyse, answers_of, edits, tables
from tests.support.small_models import make_model

phones = st.lists(st.sampled_from(["AH", "B", "K"]), max_size=6)


@given(phones, phones)
def test_edits_are_the_fewest_and_turn_one_into_the_other(wanted: list[str], said: list[str]) -> None:
    found = edits(wanted, said)
    assert len(found) == edit_distance(wanted, said)
    added = sum(a == "-" for a, _ in found) - sum(b == "-" for _, b in found)
    assert len(wanted) + added == len(said)


def answer(word: str, output: str, *references: str, probability: float = 0.95) -> Answer:
    return Answer(word, output.split(), [reference.split() for reference in references], probability)


ANSWERS = [
    answer("cat", "K AE1 T", "K AA1 T", "K AE1 T", probability=0.99),
    answer("baker", "B EY1 K ER0", "B EY2 K ER0", probability=0.96),
    answer("bakery", "B IY1 K ER0 IY0", "B EY1 K ER0 IY0", probability=0.6),
    answer("bakeries", "B IY1 K ER0 Z", "B EY1 K ER0 IY0 Z", probability=0.55),
]


def test_an_analysis_tells_lengths_names_confusions_and_calibration_apart() -> None:
    found = analyse(ANSWERS, names={"baker"})
    lengths = {row["of"]: (row["words"], row["wrong"], row["wrong_without_stress"]) for row in found["by_length"]}
    assert lengths["1 to 4 letters"] == (1, 0, 0)
    assert lengths["5 to 6 letters"] == (2, 100, 50)
    assert [(row["words"], row["wrong_without_stress"]) for row in found["by_kind"]] == [
        (1, 0),
        (3, pytest.approx(200 / 3)),
    ]
    assert found["confusions"] == [
        {"wanted": "EY", "said": "IY", "times": 2},
        {"wanted": "IY", "said": "-", "times": 1},
    ]
    bins = [(row["words"], row["right"]) for row in found["calibration"]["bins"]]
    assert bins == [(2, 0), (2, 50)]
    assert found["calibration"]["expected_error"] == pytest.approx((57.5 + 47.5) / 2)
    assert "| EY | IY | 2 |" in tables(found)


def test_an_answer_has_the_probability_that_the_model_gives_it(tmp_path: Path) -> None:
    source, target = learn("chars", ["abc"]), learn("words", ["a b c"])
    model = make_model(seed=98, source_vocab=source.size, target_vocab=target.size)  # ends for c, and never for ab
    trained = TrainedModel(model.config, model, source, target)
    (tmp_path / "test.tsv").write_text("ab\ta b\nc\tc\n", encoding="utf-8")
    endless, ended = answers_of(trained, tmp_path / "test.tsv")
    best = greedy(model, source.encode("c"))
    assert ended.output == target.decode(best.ids).split()
    assert ended.probability == pytest.approx(math.exp(sum(best.logprobs)), rel=1e-4)
    assert endless.probability < 1e-9
