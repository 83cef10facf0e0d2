"""Validation sources that are in the training file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import attendant
from attendant.model.corpus.shared import overlap_warning
from tests.model.training.test_train import LINES

QUICK = ("--preset=tiny", "--set=steps=1", "--set=validate_every=1")


def test_sources_are_counted_once_whatever_their_target(write_tsv: Callable[..., Path]) -> None:
    train = write_tsv("a\tx", "b\ty", "c\tz", name="train.tsv")
    valid = write_tsv("b\ty", "b\tother", "c\tz", "d\tx", name="valid.tsv")
    found = overlap_warning(train, valid)
    assert found is not None
    assert found.startswith(f"warning: 2 of the 3 validation sources are in {train} too: ")


def test_sources_are_compared_as_the_model_reads_them(write_tsv: Callable[..., Path]) -> None:
    train, valid = write_tsv("Cat\tx", name="train.tsv"), write_tsv("cat\tx", name="valid.tsv")
    assert overlap_warning(train, valid) is None
    assert overlap_warning(train, valid, str.lower) is not None


def test_training_warns(write_tsv: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tsv = str(write_tsv(*LINES))
    apart = str(write_tsv("afkx\tX K F A", name="valid.tsv"))
    for valid, warned in ((tsv, True), (apart, False)):
        run = str(tmp_path / str(warned))
        assert attendant.main(["train", *QUICK, "--data", tsv, "--valid", valid, "--out", run]) == 0
        assert ("validation sources are in" in capsys.readouterr().out) == warned
