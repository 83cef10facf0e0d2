"""How near is near enough: the tolerance, torch's own rounding and its cap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attendant.export.bundle import read_bundle
from attendant.export.graphs.graphs import sizes_of
from attendant.export.make.samples import read_samples
from attendant.export.runner import PLAIN
from attendant.export.verify import compare
from attendant.export.verify.compare import check_values, grid, rounding_allowance, torch_values
from attendant.export.verify.verify import verify
from attendant.model.checkpoint import load_trained
from attendant.model.transformer import Transformer
from tests.support.exporting import edit_manifest, export_unproven, write_run
from tests.support.small_models import make_model


def test_torchs_own_rounding_widens_the_tolerance_fourfold_and_up_to_a_cap() -> None:
    single = np.zeros(3)
    assert rounding_allowance(1e-4, single, single + 1e-6) == 1e-4
    assert rounding_allowance(1e-4, single, single + 1e-4) == pytest.approx(4e-4)
    assert rounding_allowance(1e-4, single, single + 1.0) == pytest.approx(1e-3)


class TorchRunner:
    """Torch in place of graphs, with one result moved."""

    way = PLAIN

    def __init__(self, model: Transformer, name: str, distance: float) -> None:
        self.model, self.name, self.distance = model, name, distance
        self.sizes = sizes_of(model.config)

    def full(self, *arrays: Any) -> dict[str, Any]:
        found = torch_values(self.model, compare.Inputs(*arrays))
        if self.name in found:
            found[self.name] = found[self.name] + self.distance
        return found

    def stepwise(self, *arrays: Any) -> Any:
        return torch_values(self.model, compare.Inputs(*arrays))["logprobs"]


@pytest.mark.parametrize("rough", ["logprobs", "decoder_attention"])
@pytest.mark.parametrize("moved", ["logprobs", "decoder_attention", "cross_attention"])
def test_each_result_is_held_to_its_own_rounding(moved: str, rough: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result on which torch itself rounds roughly loosens no other."""
    model = make_model(max_length=12)
    runner: Any = TorchRunner(model, moved, 3e-4)

    def rough_in_f64(found: Transformer, inputs: compare.Inputs, double: bool = False) -> dict[str, Any]:
        values = torch_values(found, inputs, double)
        if double:
            values[rough] = values[rough] + 1e-4
        return values

    monkeypatch.setattr(compare, "torch_values", rough_in_f64)
    found = list(check_values(runner, model, 1e-4))
    assert bool(found) == (moved != rough)
    assert all(problem.startswith(f"{moved} is off by more than 0.0001 at batch") for problem in found)


def test_nothing_is_nearer_than_the_cap_allows_however_rough_torch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(max_length=12)
    runner: Any = TorchRunner(model, "logprobs", 2e-3)

    def rough_in_f64(found: Transformer, inputs: compare.Inputs, double: bool = False) -> dict[str, Any]:
        return {name: value + double for name, value in torch_values(found, inputs, double).items()}

    monkeypatch.setattr(compare, "torch_values", rough_in_f64)
    assert "logprobs is off by more than 0.001" in next(check_values(runner, model, 1e-4))


@pytest.mark.parametrize("limit", [2, 3, 8, 64])
def test_the_grid_has_the_shortest_and_the_longest_and_nothing_longer(limit: int) -> None:
    points = list(grid(sizes_of(make_model(max_length=limit).config)))
    lengths = [int(length) for point in points for length in point.source_length]
    assert (min(lengths), max(lengths)) == (1, limit)
    assert {point.target.shape[1] for point in points} >= {1, limit}
    assert max(point.target.shape[1] for point in points) == limit


def test_a_model_of_few_positions_is_verified(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [(a, "A") for a in "abcfgkl"], scale=1.0, max_length=3)
    bundle = read_bundle(export_unproven(run, tmp_path / "bundle"))
    found = verify(bundle, read_samples(run, load_trained(run)))
    assert [problem for problem in found if "differs from torch" not in problem] == []  # random weights leave no margin


def test_tolerances_are_the_codes_and_not_the_manifests(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    directory = export_unproven(run, tmp_path / "bundle", ("fp32",))

    def loosen(manifest: dict[str, Any]) -> None:
        manifest["variants"]["fp32"]["tolerance"] = 100.0
        for sample in manifest["certificate"]["samples"]:
            sample["next_token"]["logprobs"][0] += 1.0

    edit_manifest(directory, loosen)
    found = verify(read_bundle(directory))
    assert "fp32 tolerance: the manifest allows a drift of 100, and this version 0.001" in found
    assert any("fp32 certificate: log-probabilities drift by 1" in problem for problem in found)


def test_a_precision_that_this_version_does_not_know_is_a_problem(tmp_path: Path) -> None:
    directory = export_unproven(write_run(tmp_path / "run"), tmp_path / "bundle", ("fp32",))

    def rename(manifest: dict[str, Any]) -> None:
        manifest["variants"]["int4"] = manifest["variants"].pop("fp32")

    edit_manifest(directory, rename)
    assert "int4 is no precision that this version can verify; it knows fp32, int8, fp16" in verify(
        read_bundle(directory)
    )
