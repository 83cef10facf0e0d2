"""Verify looks at everything that a manifest says, not only at what the graphs compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attendant.export.bundle import Bundle, read_bundle
from attendant.export.make.samples import Samples, read_samples
from attendant.export.verify import torch_checks
from attendant.export.verify.manifest_checks import check_manifest, check_measured_values
from attendant.model.checkpoint import load_trained
from tests.support.exporting import export_unproven, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def bundle(run: Path) -> Bundle:
    return read_bundle(export_unproven(run, run.parent / "bundle", ("fp32",)))


@pytest.fixture(scope="module")
def samples(run: Path) -> Samples:
    return read_samples(run, load_trained(run))


def test_what_export_writes_passes(bundle: Bundle, samples: Samples) -> None:
    assert bundle.alignment
    assert list(check_manifest(bundle)) == []
    assert list(check_measured_values(bundle.variants["fp32"])) == []
    assert list(torch_checks.check_origin(bundle, samples)) == []
    assert list(torch_checks.check_alignment(bundle, samples)) == []


def of_alignment(**changes: Any) -> Callable[[Bundle], Bundle]:
    return lambda bundle: dataclasses.replace(bundle, alignment=bundle.alignment | changes)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda bundle: dataclasses.replace(bundle, name=""), "name: '' is no name of a model"),
        (lambda bundle: dataclasses.replace(bundle, name="a\nb"), "name: 'a\\nb' is no name"),
        (lambda bundle: dataclasses.replace(bundle, produced_by={}), "checkpoint_sha256: '' is no SHA-256"),
        (of_alignment(layer=7), "alignment: layer 7 of"),
        (of_alignment(heads=[0, 0]), "alignment: heads [0, 0] of"),
        (of_alignment(agreement=1.5), "alignment: an agreement of 1.5"),
    ],
)
def test_values_that_no_export_writes_are_found_without_torch(
    bundle: Bundle, change: Callable[[Bundle], Bundle], why: str
) -> None:
    (problem,) = check_manifest(change(bundle))
    assert problem.startswith(why)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("sequence_error_rate", 140.0, "measured: sequence_error_rate is 140"),
        ("token_error_rate", float("inf"), "measured: token_error_rate is inf"),
        ("held_out_inputs", 0, "measured: there is no held-out input"),
        ("drift", 0.5, "measured: a drift of 0.5, over the tolerance"),
    ],
)
def test_measurements_that_cannot_be_are_found_without_torch(bundle: Bundle, name: str, value: float, why: str) -> None:
    variant = bundle.variants["fp32"]
    (problem,) = check_measured_values(dataclasses.replace(variant, measured=variant.measured | {name: value}))
    assert problem.startswith(why)


def test_another_checkpoint_than_the_manifest_names_is_found(bundle: Bundle, samples: Samples) -> None:
    other = dataclasses.replace(bundle, produced_by=bundle.produced_by | {"checkpoint_sha256": "0" * 64})
    (problem,) = torch_checks.check_origin(other, samples)
    assert problem.startswith("facts: checkpoint_sha256 is 000000000000")


@pytest.mark.parametrize("missing", [False, True])
def test_an_alignment_that_is_not_the_models_is_found(bundle: Bundle, samples: Samples, missing: bool) -> None:
    wrong = {} if missing else bundle.alignment | {"agreement": bundle.alignment["agreement"] / 2}
    problems = list(torch_checks.check_alignment(dataclasses.replace(bundle, alignment=wrong), samples))
    assert len(problems) == 1
    assert problems[0].startswith("alignment: ")
