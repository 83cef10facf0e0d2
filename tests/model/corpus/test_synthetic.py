"""Small synthetic corpora: three kinds of sequence task, each learnt, exported and served; sentences to translate."""

from __future__ import annotations

import itertools
import random
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import attendant
from attendant.model.checkpoint import load_trained
from attendant.model.config import build
from attendant.model.corpus.pairs import read_pairs
from attendant.model.corpus.synthetic import ONES, TASKS, make_synthetic, spelled
from attendant.model.corpus.translation import translation
from attendant.model.evaluation.evaluate import evaluate_run
from attendant.model.training.prepare import Plan
from attendant.model.training.train import train
from attendant.service.http.app import create_app
from attendant.service.settings import Settings

TOKENIZERS = {"tagging": ("words", "words"), "sentiment": ("words", "words"), "spelling": ("chars", "words")}


@pytest.mark.timeout(600)  # on a machine that is busy with other work
@pytest.mark.parametrize("task", TOKENIZERS)
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
    asked = [*wanted, *map(str, range(10))] if task == "spelling" else list(wanted)
    answers = served(tmp_path / "bundle", asked)
    assert sum(answers[source] != target for source, target in wanted.items()) <= 0.03 * len(wanted)
    if task == "spelling":
        assert [answers[str(digit)] for digit in range(10)] == ONES[:10]


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
    sources = {part: [source for source, _ in read_pairs(tmp_path / f"{part}.tsv")] for part in counts}
    assert {part: len(found) for part, found in sources.items()} == counts
    for one, other in itertools.combinations(counts, 2):
        assert not set(sources[one]) & set(sources[other])


def test_every_number_below_100_is_trained_and_single_digits_often(tmp_path: Path) -> None:
    make_synthetic("spelling", tmp_path)
    counts = Counter(source for source, _ in read_pairs(tmp_path / "train.tsv"))
    assert all(counts[str(number)] for number in range(100))
    assert all(counts[str(number)] >= 5 for number in range(10))


def test_most_sentences_have_the_usual_translation_of_a_word_and_some_the_rarer_one() -> None:
    rng = random.Random(0)
    pairs = [translation(rng) for _ in range(4000)]
    assert all(source[0] in source[0].upper() and source.endswith(".") for source, _ in pairs)
    assert all(target.endswith(".") for _, target in pairs)
    houses = [target for source, target in pairs if source.count("house") == 1]
    rare = sum("Gebäude" in target for target in houses)
    assert all(("Haus" in target) != ("Gebäude" in target) for target in houses)
    assert 0 < rare < len(houses) / 2


def test_a_translation_has_genders_cases_and_the_verb_in_the_second_place() -> None:
    rng = random.Random(1)
    found = [translation(rng) for _ in range(8000)]
    for english, german in (
        (r"^A small key is", r"^Ein kleiner Schlüssel ist"),
        (r"(sells|finds|needs|buys|sees) a small key\b", r"einen kleinen Schlüssel\b"),
        (r"the old lamp\b", r"[Dd]ie alte Lampe\b"),
        (r"^Today Peter opens", r"^Heute öffnet Peter"),
        (r"must read the book\.$", r" muss .*das Buch lesen\.$"),
    ):
        translated = [target for source, target in found if re.search(english, source)]
        assert translated, english
        assert all(re.search(german, target) for target in translated), english


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
