"""A certificate is held to the tolerance, or to torch's own rounding where that is as large, up to a cap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attendant.export.bundle import Bundle, read_bundle
from attendant.export.make import certificate, convert
from attendant.export.make.certificate import check_answers, make_certificate, own_rounding
from attendant.export.make.samples import Samples, read_samples
from attendant.export.precisions import PRECISIONS
from attendant.export.runner import ways_to_run
from attendant.export.verify.rounding import drift_tolerance, with_rounding
from attendant.export.verify.verify import verify
from attendant.model.checkpoint import load_trained
from tests.support.exporting import WORDS, edit_manifest, export_unproven, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", scale=1.0)


@pytest.fixture
def samples(run: Path) -> Samples:
    return read_samples(run, load_trained(run))


def loosened(run: Path, tolerance: float, moved: float = 0.0) -> Bundle:
    """A bundle whose manifest allows this drift, its certificate moved by some nats."""
    directory = export_unproven(run, run.parent / f"bundle-{tolerance}", ("fp32",))

    def change(manifest: dict[str, Any]) -> None:
        manifest["variants"]["fp32"]["tolerance"] = tolerance
        manifest["certificate"]["samples"][0]["greedy"]["logprobs"][0] += moved

    edit_manifest(directory, change)
    return read_bundle(directory)


def about(bundle: Bundle, check: str, samples: Samples | None = None) -> list[str]:
    return [problem for problem in verify(bundle, samples) if check in problem]


def test_rounding_widens_the_tolerance_up_to_a_cap_and_never_narrows_it() -> None:
    assert with_rounding(1e-4, 1e-6) == with_rounding(1e-4, np.nan) == 1e-4
    assert with_rounding(1e-4, 1e-4) == pytest.approx(4e-4)
    assert with_rounding(1e-4, np.inf) == pytest.approx(1e-3)
    assert drift_tolerance(PRECISIONS["int8"], np.inf) == PRECISIONS["int8"].tolerance


@pytest.mark.parametrize(("measured", "tolerance"), [(0.1, 0.5), (0.7, 1.4), (9.0, 5.0), (np.nan, 0.5)])
def test_the_tolerance_of_int8_is_twice_the_drift_that_was_measured_within_bounds(
    measured: float, tolerance: float
) -> None:
    assert drift_tolerance(PRECISIONS["int8"], 0.0, measured) == tolerance


def test_the_rounding_of_a_certificate_is_torchs_distance_from_f64(samples: Samples, tmp_path: Path) -> None:
    trained = samples.trained
    rounding = own_rounding(make_certificate(trained, WORDS), trained)
    assert 0 < rounding < 1e-5
    rough = load_trained(write_run(tmp_path / "rough", scale=3.0))  # weights so large that softmax magnifies rounding
    assert own_rounding(make_certificate(rough, WORDS), rough) > 4 * rounding
    rough.model.double()
    assert own_rounding(make_certificate(rough, WORDS), rough) == 0


@pytest.mark.parametrize(("rounding", "tolerance"), [(1e-6, 1e-4), (1e-4, 4e-4), (1.0, 1e-3)])
def test_an_export_writes_the_tolerance_that_torchs_rounding_leads_to(
    run: Path, rounding: float, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "own_rounding", lambda *_: rounding)
    bundle = read_bundle(export_unproven(run, run.parent / "bundle"))
    assert bundle.variants["fp32"].tolerance == pytest.approx(tolerance)
    assert bundle.variants["int8"].tolerance == PRECISIONS["int8"].tolerance


def test_a_looser_tolerance_needs_a_torch_that_rounds_as_roughly(
    run: Path, samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = loosened(run, 4e-4)
    [problem] = about(bundle, "tolerance:", samples)
    assert problem == "fp32 tolerance: the manifest allows a drift of 0.0004, and this version 0.0001"
    monkeypatch.setattr(certificate, "own_rounding", lambda *_: 3e-5)  # here, and 1e-4 where it was exported
    assert about(bundle, "tolerance:", samples) == []


def test_no_rounding_explains_a_tolerance_beyond_the_cap(
    run: Path, samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate, "own_rounding", lambda *_: 1.0)
    assert about(loosened(run, 1e-3), "tolerance:") == []
    bundle = loosened(run, 2e-3)
    expected = ["fp32 tolerance: the manifest allows a drift of 0.002, and this version 0.001"]
    assert about(bundle, "tolerance:") == about(bundle, "tolerance:", samples) == expected


@pytest.mark.parametrize(("tolerance", "problems"), [(1e-4, True), (4e-4, False), (2e-3, True)])
def test_the_replay_is_held_to_the_manifests_tolerance_if_that_is_allowed(
    run: Path, tolerance: float, problems: bool
) -> None:
    bundle = loosened(run, tolerance, moved=3e-4)
    found = about(bundle, "certificate: log-probabilities drift by 0.0003")
    assert len(found) == problems * len(ways_to_run(bundle.variants["fp32"].graphs))


@pytest.mark.parametrize(("rounding", "problems"), [(1e-6, 1), (1e-4, 0)])
def test_answers_are_torchs_own_within_torchs_rounding(
    samples: Samples, rounding: float, problems: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = make_certificate(samples.trained, WORDS)
    held["samples"][0]["greedy"]["logprobs"][0] += 3e-4
    monkeypatch.setattr(certificate, "own_rounding", lambda *_: rounding)
    assert len(list(check_answers(held, samples.trained))) == problems
