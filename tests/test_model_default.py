"""The committed model is the one that its card describes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model.checkpoint import load_trained
from model.evaluate import evaluate_run
from model.g2p import make_corpus
from model.prepare import file_digest
from model.reference import greedy

DEFAULT = Path(__file__).parent.parent / "model" / "default"
RESULTS = json.loads((DEFAULT / "results.json").read_text(encoding="utf-8"))


def test_the_card_is_of_the_weights_beside_it() -> None:
    assert file_digest(DEFAULT / "model.safetensors") == RESULTS["model_sha256"]
    card = (DEFAULT / "README.md").read_text(encoding="utf-8")
    for report in RESULTS["searches"].values():
        for rates in (report, report["ignoring"]):
            assert f"{rates['sequence_error_rate']:.2f} %" in card
            assert f"{rates['token_error_rate']:.2f} %" in card


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
