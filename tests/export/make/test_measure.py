"""What was measured of a variant is in its manifest, is true, and is shown."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from attendant.export.bundle import Bundle, read_bundle
from attendant.export.make.measure import check_measured, decode, differing, measure
from attendant.export.make.samples import Samples, read_samples
from attendant.export.runner import KERNELS, PLAIN, Runner, ways_to_run
from attendant.export.verify.torch_checks import check_facts
from attendant.export.verify.verify import verify
from attendant.model.checkpoint import load_trained
from attendant.service.commands.info import describe_bundle, describe_machine, text_of
from tests.support.exporting import edit_manifest, export_unproven, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def bundle(run: Path) -> Bundle:
    return read_bundle(export_unproven(run, run.parent / "bundle"))


@pytest.fixture(scope="module")
def samples(run: Path) -> Samples:
    return read_samples(run, load_trained(run))


def test_the_manifest_says_what_was_measured_of_every_variant(bundle: Bundle, samples: Samples) -> None:
    for variant in bundle.variants.values():
        runner = Runner(variant.graphs, bundle.sizes)
        assert runner.way == (KERNELS if KERNELS in ways_to_run(variant.graphs) else PLAIN)  # what a CPU is served with
        assert variant.measured == measure(runner, decode(runner, samples), samples, bundle.certificate)
        assert variant.measured["held_out_inputs"] == len(samples.texts)
    exact, int8 = (bundle.variants[name].measured for name in ("fp32", "int8"))
    assert exact["differing_greedy"] == exact["differing_beam_4"] == 0.0
    assert exact["sequence_error_rate"] == exact["torch_sequence_error_rate"]
    assert exact["drift"] < int8["drift"]


def test_the_share_of_differing_answers_is_in_percent() -> None:
    assert differing([[1], [2, 3], [], [4]], [[1], [2], [], [5]]) == 50.0


def test_a_rate_that_is_not_true_is_found(bundle: Bundle) -> None:
    true = dict.fromkeys(bundle.variants["int8"].measured, 20.0) | {"held_out_inputs": 1000}
    assert list(check_measured(true, true)) == []
    assert list(check_measured({}, true)) == []  # an older bundle says nothing
    assert list(check_measured(true | {"token_error_rate": 20.9}, true)) == []
    assert list(check_measured(true | {"drift": 1.0}, true)) == ["measured: the drift is 20, and the manifest says 1"]
    assert list(check_measured(true | {"differing_greedy": 0.0}, true)) == [
        "measured: differing_greedy is 20.00 %, and the manifest says 0.0"
    ]
    assert list(check_measured({"drift": 0.1}, true))


def test_verify_compares_the_manifests_rates_with_its_own(bundle: Bundle, samples: Samples) -> None:
    only = dataclasses.replace(
        bundle.variants["fp32"], measured=bundle.variants["fp32"].measured | {"differing_greedy": 90.0}
    )
    [found] = verify(dataclasses.replace(bundle, variants={"fp32": only}), samples)
    assert found.endswith("measured: differing_greedy is 0.00 %, and the manifest says 90.0")


def test_facts_of_the_manifest_that_are_not_the_checkpoints_are_found(
    bundle: Bundle, samples: Samples, tmp_path: Path
) -> None:
    trained = samples.trained
    assert list(check_facts(bundle, trained)) == []
    swapped = {"source": bundle.tokenizers["target"], "target": bundle.tokenizers["target"]}
    for changed, problem in (
        (dataclasses.replace(bundle, tokenizers=swapped), "facts: the source tokenizer is not the checkpoint's"),
        (dataclasses.replace(bundle, special_ids=bundle.special_ids | {"eos": 2}), "facts: special_ids are"),
        (dataclasses.replace(bundle, limits=bundle.limits | {"max_target_length": 64}), "facts: limits are"),
    ):
        assert next(check_facts(changed, trained)).startswith(problem)
    other = write_run(tmp_path / "other", d_ff=48)
    [only] = verify(bundle, read_samples(other, load_trained(other)))
    assert only.startswith("facts: the bundle is of Sizes(")


def shown(described: dict[str, Any]) -> str:
    machine = {**describe_machine(["int8"]), "lanes": 2, "lanes_reason": None, "kernels": "avx2"}
    return text_of({"bundle": described, "machine": machine})


def test_info_shows_what_was_measured(bundle: Bundle) -> None:
    described = describe_bundle(bundle)
    assert described["variants"]["int8"]["measured"] == bundle.variants["int8"].measured
    measured = bundle.variants["int8"].measured
    text = shown(described)
    assert f"drift {measured['drift']:g}" in text
    assert (
        f"{measured['differing_greedy']:g} % of {measured['held_out_inputs']:,} greedy answers differ from torch's"
        in text
    )
    rate, torch_rate = measured["sequence_error_rate"], measured["torch_sequence_error_rate"]
    assert f"sequence error rate {rate:g} %, torch's {torch_rate:g} %" in text


def test_a_bundle_of_which_nothing_was_measured_reads_and_is_shown(bundle: Bundle, tmp_path: Path) -> None:
    shutil.copytree(bundle.directory, tmp_path / "old")
    edit_manifest(tmp_path / "old", lambda m: [variant.pop("measured") for variant in m["variants"].values()])
    old = read_bundle(tmp_path / "old")
    assert old.variants["int8"].measured == {}
    assert "drift" not in shown(describe_bundle(old))
