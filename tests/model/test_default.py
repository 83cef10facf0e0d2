"""The committed model is the one that its card describes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attendant.model.checkpoint import load_trained
from attendant.model.corpus.g2p import make_corpus
from attendant.model.evaluation.evaluate import evaluate_run
from attendant.model.files import file_digest
from attendant.model.search.reference import greedy
from attendant.model.training import recipe
from bench.default_model.analysis import tables

DEFAULT = Path(__file__).parents[2] / "model" / "default"
RESULTS = json.loads((DEFAULT / "results.json").read_text(encoding="utf-8"))


def test_the_card_is_of_the_weights_beside_it() -> None:
    assert file_digest(DEFAULT / "model.safetensors") == RESULTS["model_sha256"]
    card = (DEFAULT / "README.md").read_text(encoding="utf-8")
    for report in RESULTS["searches"].values():
        for rates in (report, report["ignoring"]):
            assert f"{rates['sequence_error_rate']:.2f} %" in card
            assert f"{rates['token_error_rate']:.2f} %" in card


def test_the_card_has_the_commands_that_the_run_was_made_by() -> None:
    card = (DEFAULT / "README.md").read_text(encoding="utf-8")
    told = " ".join(card.replace("\\\n", " ").split())
    assert all(command in told for command in recipe.commands(DEFAULT))
    assert ("No one command makes these weights" in card) == recipe.changed_on_the_way(DEFAULT)


def test_the_card_says_where_the_model_errs() -> None:
    card = (DEFAULT / "README.md").read_text(encoding="utf-8")
    assert tables(RESULTS["errors"]).strip() in card
    assert len(RESULTS["errors"]["confusions"]) == 10
    for groups in (RESULTS["errors"]["by_length"], RESULTS["errors"]["by_kind"]):
        assert sum(group["words"] for group in groups) == RESULTS["searches"]["greedy"]["sources"]
        wrong = sum(group["wrong"] * group["words"] for group in groups)
        expected = RESULTS["searches"]["greedy"]["sequence_error_rate"] * RESULTS["searches"]["greedy"]["sources"]
        assert wrong == pytest.approx(expected, rel=1e-6)


def test_evaluating_the_committed_model_reproduces_the_card(tmp_path: Path) -> None:
    make_corpus(tmp_path)
    assert file_digest(tmp_path / "test.tsv") == RESULTS["test_sha256"]
    report = evaluate_run(load_trained(DEFAULT), tmp_path / "test.tsv", 1, 1.0, "[0-9]")
    printed = RESULTS["searches"]["greedy"]
    for name in ("sequence_error_rate", "token_error_rate"):  # another machine may round a near tie the other way
        assert report[name] == pytest.approx(printed[name], abs=0.05)
        assert report["ignoring"][name] == pytest.approx(printed["ignoring"][name], abs=0.05)


def test_it_pronounces() -> None:
    trained = load_trained(DEFAULT)
    for word, phones in (("cat", "K AE1 T"), ("ships", "SH IH1 P S"), ("attendant", "AH0 T EH1 N D AH0 N T")):
        assert trained.target.decode(greedy(trained.model, trained.source.encode(word)).ids) == phones


def test_it_is_of_the_size_it_should_be() -> None:
    assert 3e6 <= RESULTS["parameters"] <= 6e6
