"""A certificate holds what can be served, is torch's own, and lets no NaN pass."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attendant.export.bundle import BundleError, read_bundle
from attendant.export.make import convert
from attendant.export.make.certificate import check_answers, make_certificate
from attendant.export.precisions import PRECISIONS
from attendant.export.verify.bundle_checks import check_drift
from attendant.export.verify.replay import check_samples, drift
from attendant.model import checkpoint
from attendant.model.checkpoint import TrainedModel, load_trained
from attendant.service.engine.engine import Engine, EngineSettings
from tests.support.exporting import WORDS, export_unproven, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def trained(run: Path) -> TrainedModel:
    return load_trained(run)


@pytest.fixture(scope="module")
def held(trained: TrainedModel) -> dict[str, Any]:
    return make_certificate(trained, WORDS)


class Constant:
    """A runner whose every log-probability is the same."""

    def __init__(self, value: float, vocabulary: int) -> None:
        self.value, self.vocabulary = value, vocabulary

    def stepwise(self, _source: Any, _length: Any, target: Any) -> Any:
        return np.full((*target.shape, self.vocabulary), self.value, np.float32)


def test_nan_is_a_drift_beyond_any_tolerance(held: dict[str, Any], trained: TrainedModel) -> None:
    runner: Any = Constant(np.nan, trained.config.target_vocab)
    assert np.isnan(drift(held, runner))


def test_one_nan_among_numbers_is_not_passed_over(held: dict[str, Any], trained: TrainedModel) -> None:
    spoiled = copy.deepcopy(held)
    spoiled["samples"][3]["greedy"]["logprobs"][0] = np.nan
    runner: Any = Constant(-1.0, trained.config.target_vocab)
    assert np.isfinite(drift(held, runner))
    assert np.isnan(drift(spoiled, runner))


@pytest.mark.parametrize("name", ["greedy", "beam", "next_token"])
def test_every_log_probability_counts(name: str, held: dict[str, Any], trained: TrainedModel) -> None:
    runner: Any = Constant(-1.0, trained.config.target_vocab)
    changed = copy.deepcopy(held)
    changed["samples"][3][name]["logprobs"][0] = 1000.0
    assert drift(changed, runner) == 1001.0


def test_a_nan_drift_is_a_problem(run: Path, trained: TrainedModel, tmp_path: Path) -> None:
    bundle = read_bundle(export_unproven(run, tmp_path / "bundle", ("fp32",)))
    runner: Any = Constant(np.nan, trained.config.target_vocab)
    assert "drift by nan" in next(check_drift(bundle, runner, PRECISIONS["fp32"].tolerance))


def test_a_model_with_nan_weights_is_refused_with_a_sentence(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    weights = checkpoint.weights_of(load_trained(run).model)
    weights["decoder.0.feed_forward.widen.weight"][0, 0] = torch.nan
    checkpoint.save_weights(weights, run / checkpoint.MODEL)
    with pytest.raises(BundleError, match=r"the weight decoder\.0\.feed_forward\.widen\.weight holds NaN"):
        convert.convert(run, tmp_path / "bundle", "small")


def test_answers_that_do_not_end_leave_room_for_an_end_token(held: dict[str, Any], trained: TrainedModel) -> None:
    endless = [sample for sample in held["samples"] if sample["greedy"]["finish_reason"] == "length"]
    assert endless  # else this shows nothing
    for sample in endless:
        assert len(sample["greedy"]["ids"]) == len(sample["greedy"]["logprobs"]) == trained.config.max_length - 1


def test_a_bundle_whose_answers_do_not_end_can_be_served(run: Path, held: dict[str, Any], tmp_path: Path) -> None:
    assert any(sample["greedy"]["finish_reason"] == "length" for sample in held["samples"])
    bundle = read_bundle(export_unproven(run, tmp_path / "bundle", ("fp32",)))
    engine = Engine(bundle, EngineSettings(precision="fp32", threads=1))
    assert engine.description.certificate.drift <= bundle.variants["fp32"].tolerance


def test_an_answer_too_long_to_be_served_is_a_problem(held: dict[str, Any], trained: TrainedModel) -> None:
    assert list(check_samples(held, trained.config.max_length)) == list(check_answers(held, trained)) == []
    found = list(check_samples(held, trained.config.max_length - 1))
    assert any("has 11 tokens, and with its end token the service can score 11" in problem for problem in found)


@pytest.mark.parametrize("name", ["greedy", "beam", "next_token"])
def test_answers_that_are_not_torchs_are_a_problem(name: str, held: dict[str, Any], trained: TrainedModel) -> None:
    for field in ("ids", "logprobs"):
        changed = copy.deepcopy({"samples": held["samples"][:3]})
        changed["samples"][2][name][field][1] += 1
        found = list(check_answers(changed, trained))
        assert len(found) == 1
        assert found[0].startswith(f"{name} of sample 2, ")


def test_a_certificate_without_samples_is_a_problem() -> None:
    assert list(check_samples({"samples": []}, 12)) == ["it has no samples"]


def test_a_model_whose_activations_overflow_is_refused_in_a_sentence(tmp_path: Path) -> None:
    trained = load_trained(write_run(tmp_path / "run"))
    with torch.no_grad():
        trained.model.encoder[0].feed_forward.widen.weight.fill_(3e38)
    with pytest.raises(BundleError, match="the model computes NaN for the source 'afk'"):
        make_certificate(trained, ["afk"])
