"""The three kinds of sequence task, each learnt from its small corpus, exported and served."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import attendant
from model.checkpoint import load_trained
from model.config import build
from model.evaluate import evaluate_run
from model.pairs import read_pairs
from model.prepare import Plan
from model.synthetic import TASKS, make_synthetic, spelled
from model.train import train
from service.http.app import create_app
from service.settings import Settings

TOKENIZERS = {"tagging": ("words", "words"), "sentiment": ("words", "words"), "spelling": ("chars", "words")}


@pytest.mark.timeout(600)  # on a machine that is busy with other work
@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_learnt_to_near_perfection_exported_and_served(task: str, tmp_path: Path) -> None:
    make_synthetic(task, tmp_path)
    steps = {"tagging": 600, "sentiment": 300, "spelling": 800}[task]
    changes = {"steps": steps, "validate_every": steps, "learning_rate": 3e-3}
    model, training = build("tiny", changes)
    source, target = TOKENIZERS[task]
    corpus = {"data": tmp_path / "train.tsv", "valid": tmp_path / "valid.tsv", "out": tmp_path / "run"}
    train(Plan(**corpus, model=model, train=training, source_tokenizer=source, target_tokenizer=target))
    report = evaluate_run(load_trained(tmp_path / "run"), tmp_path / "test.tsv", 1, 1.0, None)
    assert report["sequence_error_rate"] <= 3

    assert attendant.main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "bundle")]) == 0
    wanted = dict(read_pairs(tmp_path / "test.tsv"))
    answers = served(tmp_path / "bundle", list(wanted))
    assert sum(answers[source] != target for source, target in wanted.items()) <= 0.03 * len(wanted)


def served(bundle: Path, sources: list[str]) -> dict[str, str]:
    """What `POST /v1/generate` answers to each source."""
    with TestClient(create_app(Settings(bundle=bundle))) as client:
        give_up = time.monotonic() + 60
        while client.get("/readyz").status_code != 200 and time.monotonic() < give_up:
            time.sleep(0.02)
        answer = client.post("/v1/generate", json={"inputs": sources})
    assert answer.status_code == 200, answer.text
    outputs = answer.json()["outputs"]
    return {source: output["hypotheses"][0]["text"] for source, output in zip(sources, outputs, strict=True)}


@pytest.mark.parametrize("task", TASKS)
def test_no_source_is_in_two_parts(task: str, tmp_path: Path) -> None:
    counts = make_synthetic(task, tmp_path)
    sources = [source for part in counts for source, _ in read_pairs(tmp_path / f"{part}.tsv")]
    assert len(set(sources)) == len(sources) == sum(counts.values())


def test_the_three_shapes_of_output() -> None:
    rng = random.Random(0)
    for _ in range(50):
        source, target = TASKS["tagging"](rng)
        assert len(source.split()) == len(target.split())
        assert TASKS["sentiment"](rng)[1] in ("positive", "negative")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (20, "twenty"),
        (99, "ninety nine"),
        (305, "three hundred five"),
        (4000, "four thousand"),
        (9999, "nine thousand nine hundred ninety nine"),
    ],
)
def test_numbers_are_spelled(number: int, words: str) -> None:
    assert spelled(number) == words
