"""What calibrates a bundle is not what it is measured on."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.bundle import BundleError
from export.samples import Samples, calibration_pairs, read_samples
from model.checkpoint import load_trained
from tests.exporting import WORDS, write_run


def samples_of(directory: Path, pairs: list[tuple[str, str]]) -> Samples:
    run = write_run(directory, pairs)
    return read_samples(run, load_trained(run))


@pytest.mark.parametrize("targets", [1, 2, 3])
def test_calibration_and_held_out_sources_are_disjoint_and_both_are_there(targets: int, tmp_path: Path) -> None:
    pairs = [(word, " ".join(["A", "B", "C"][:i])) for word in WORDS for i in range(1, targets + 1)]
    found = samples_of(tmp_path / "run", pairs)
    calibrated = {tuple(source) for source, _ in found.calibration}
    assert not calibrated & {tuple(source) for source in found.sources}
    assert len(found.texts) >= len(WORDS) / 2
    assert calibrated
    assert all(len(listed) == targets for listed in found.references)


def test_a_run_of_many_samples_has_500_of_them_calibrate_and_1000_held_out(tmp_path: Path) -> None:
    letters = "abcfgkl"
    words = [f"{a}{b}{c}{d}" for a in letters for b in letters for c in letters for d in letters][:2000]
    found = samples_of(tmp_path / "run", [(word, "A B") for word in words])
    assert len(found.calibration) == 500
    assert len(found.texts) == 1000


@pytest.mark.parametrize("count", [100, 1001, 1499, 1998])
def test_calibration_reaches_from_the_first_source_to_the_last(count: int, tmp_path: Path) -> None:
    letters = "abcfgkl"
    words = [f"{a}{b}{c}{d}" for a in letters for b in letters for c in letters for d in letters][:count]
    run = write_run(tmp_path / "run")
    (run / "samples.tsv").write_text("".join(f"{word}\tA B\n" for word in words), encoding="utf-8")
    trained = load_trained(run)
    spaced = [trained.source.encode(word) for word in words]
    used = [spaced.index(source) for source, _ in calibration_pairs(run, trained)]
    assert used[0] == 0
    assert count - used[-1] <= used[1] - used[0]
    assert count / 6 <= len(used) <= 500


def test_one_source_with_many_targets_leaves_as_many_sources_to_calibrate_with(tmp_path: Path) -> None:
    many = [(WORDS[0], " ".join("A" * i)) for i in range(1, 10)]
    plain, skewed = (samples_of(tmp_path / name, [*pairs, *((word, "A") for word in WORDS[1:])])
                     for name, pairs in (("plain", many[:1]), ("skewed", many)))  # fmt: skip
    assert plain.calibration == skewed.calibration


def test_samples_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    pairs = [("a" * 12, "A"), ("abc", "A"), ("fgk", "B"), ("b" * 30, "A")]
    found = samples_of(tmp_path / "run", [*pairs, ("abf", "A " * 30)])
    assert found.texts == ["abc"]
    assert len(found.calibration) == 1


def test_too_few_samples_are_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"samples\.tsv: of its 1 pairs, 1 fit .* 0 sources are left"):
        samples_of(tmp_path / "run", [("abc", "A B")])


def test_a_bench_calibrates_on_the_same_pairs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    trained = load_trained(run)
    assert calibration_pairs(run, trained) == read_samples(run, trained).calibration
