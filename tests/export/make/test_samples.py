"""What a bundle is proven and measured on."""

from __future__ import annotations

from pathlib import Path

import pytest

from attendant.export.bundle import BundleError
from attendant.export.make.samples import HELD_OUT, Samples, read_samples
from attendant.model.checkpoint import load_trained
from tests.support.exporting import WORDS, write_run


def samples_of(directory: Path, pairs: list[tuple[str, str]]) -> Samples:
    run = write_run(directory, pairs)
    return read_samples(run, load_trained(run))


@pytest.mark.parametrize("targets", [1, 2, 3])
def test_a_source_is_there_once_with_all_its_targets(targets: int, tmp_path: Path) -> None:
    pairs = [(word, " ".join(["A", "B", "C"][:i])) for word in WORDS for i in range(1, targets + 1)]
    found = samples_of(tmp_path / "run", pairs)
    assert found.texts == WORDS
    assert all(len(listed) == targets for listed in found.references)
    assert [(len(source), len(target)) for source, target in found.pairs] == [(3, 1)] * len(WORDS)


def test_a_run_of_many_samples_has_some_of_them_held_out(tmp_path: Path) -> None:
    letters = "abcfgkl"
    words = [f"{a}{b}{c}{d}" for a in letters for b in letters for c in letters for d in letters][:2000]
    found = samples_of(tmp_path / "run", [(word, "A B") for word in words])
    assert found.texts == words[:HELD_OUT]


def test_sources_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    pairs = [("a" * 12, "A"), ("abc", "A"), ("fgk", "B"), ("b" * 30, "A")]
    assert samples_of(tmp_path / "run", pairs).texts == ["abc", "fgk"]


def test_samples_of_which_none_fits_are_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"samples\.tsv: of its 1 pairs, none fits the model's max_length of 12"):
        samples_of(tmp_path / "run", [("a" * 12, "A B")])
