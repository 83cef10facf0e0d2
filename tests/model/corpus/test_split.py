from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import attendant
from attendant.model import checkpoint
from attendant.model.corpus import split
from attendant.model.corpus.pairs import read_pairs
from attendant.model.corpus.split import validation_share
from attendant.model.errors import DataError
from attendant.model.training import recipe
from tests.model.training.test_train import LINES, QUICK

PAIRS = [f"word{i}\ttarget {i} {j}" for i in range(1000) for j in range(1 + i % 3)]


def sources(path: Path) -> set[str]:
    return {source for source, _ in read_pairs(path)}


def test_every_pair_is_in_one_part_and_no_source_in_both(write_tsv: Callable[..., Path], tmp_path: Path) -> None:
    parts = split.split(write_tsv(*PAIRS), tmp_path)
    assert not sources(parts.train) & sources(parts.valid)
    both = parts.train.read_text("utf-8").splitlines() + parts.valid.read_text("utf-8").splitlines()
    assert sorted(both) == sorted(PAIRS)
    assert (parts.train_pairs, parts.valid_pairs) == tuple(len(list(read_pairs(p))) for p in (parts.train, parts.valid))
    assert 0.5 * validation_share(len(PAIRS)) < parts.valid_pairs / len(PAIRS) < 2 * validation_share(len(PAIRS))


def test_the_part_of_a_source_does_not_depend_on_the_order_of_the_lines(
    write_tsv: Callable[..., Path], tmp_path: Path
) -> None:
    first = split.split(write_tsv(*PAIRS), tmp_path / "a")
    second = split.split(write_tsv(*random.Random(1).sample(PAIRS, len(PAIRS))), tmp_path / "b")
    assert sources(first.valid) == sources(second.valid)


def test_sources_that_are_the_same_once_normalized_are_in_the_same_part(
    write_tsv: Callable[..., Path], tmp_path: Path
) -> None:
    tsv = write_tsv(*(f"{case(f'word{i}')}\tx" for i in range(500) for case in (str.lower, str.upper)))
    parts = split.split(tsv, tmp_path, str.lower)
    assert not {s.lower() for s in sources(parts.train)} & {s.lower() for s in sources(parts.valid)}


def test_even_two_sources_can_be_split_and_one_cannot(write_tsv: Callable[..., Path], tmp_path: Path) -> None:
    parts = split.split(write_tsv("a\tx", "b\ty"), tmp_path)
    assert (parts.train_pairs, parts.valid_pairs) == (1, 1)
    with pytest.raises(DataError, match="one source alone, which cannot be split; give a validation file with --valid"):
        split.split(write_tsv("a\tx", "a\ty"), tmp_path / "one")
    assert not (tmp_path / "one" / split.DIRECTORY).exists()


@pytest.mark.parametrize(
    ("pairs", "expected"), [(10, 1), (500, 50), (2000, 100), (50_000, 1000), (10_000_000, split.MOST)]
)
def test_some_pairs_are_split_off_but_never_many(pairs: int, expected: int) -> None:
    assert pairs * validation_share(pairs) == pytest.approx(expected)


def test_training_without_a_validation_file_splits_one_off_says_so_and_resumes(
    write_tsv: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [f"--set={name}={value}" for name, value in QUICK.items()]
    arguments = ["train", "--preset=tiny", "--data", str(write_tsv(*LINES)), "--out", str(tmp_path / "run"), *sets]
    assert attendant.main(arguments) == 0
    assert "pairs are split off by a hash of their source into" in capsys.readouterr().out
    config = json.loads((tmp_path / "run" / checkpoint.CONFIG).read_text("utf-8"))
    assert config["data"]["train"]["pairs"] + config["data"]["valid"]["pairs"] == len(LINES)
    assert "--valid" not in recipe.train_command(config)
    assert attendant.main([*arguments, "--resume", "--set=steps=16"]) == 0
    assert attendant.main([*arguments, "--resume", "--valid", str(tmp_path / "corpus.tsv")]) == 1
    assert "other values of --valid" in capsys.readouterr().err


def test_a_validation_file_with_what_training_lacks_is_warned_of(
    write_tsv: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = write_tsv(*LINES, name="train.tsv")
    valid = write_tsv(*LINES[:9], "afé\tA F", "afß\tA Z Q", name="valid.tsv")
    sets = [f"--set={name}={value}" for name, value in {**QUICK, "steps": 1}.items()]
    more = ["--preset=tiny", "--target-tokenizer=words", "--out", str(tmp_path / "run"), *sets]
    assert attendant.main(["train", "--data", str(train), "--valid", str(valid), *more]) == 0
    said = capsys.readouterr().out
    assert "2 of the validation sources have what the training data lacks: 'é', 'ß'" in said
    assert "1 of the validation targets have what the training data lacks: 'Z'" in said
