"""The certificate at the start: what is replayed, on what, and what is refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attendant.export.bundle import Bundle
from attendant.model.search import reference
from attendant.model.transformer import Transformer
from attendant.service.engine.batch.lane import Lane
from attendant.service.engine.batch.runner import Runner, StepOutputs
from attendant.service.engine.batch.runtime import Runtime
from attendant.service.engine.certificate import check_certificate
from attendant.service.engine.tasks import Distribution, NextToken, Result, Score, Scored, Task, Timing
from attendant.service.errors import StartError
from tests.support.engines import SOURCES, make_answer, make_bundle, make_engine, replace_step
from tests.support.small_models import make_model

NO_TIME = Timing(0.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return make_model(seed=3)


@pytest.fixture(scope="module")
def made(model: Transformer, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(model, tmp_path_factory.mktemp("bundle") / "small", ("fp32",))


@pytest.fixture
def bundle(made: Bundle) -> Bundle:
    """Whose certificate a test may change."""
    return copy.deepcopy(made)


def test_a_bundle_that_drifts_from_its_certificate_does_not_start(bundle: Bundle) -> None:
    bundle.certificate["samples"][1]["greedy"]["logprobs"][0] -= 0.01
    with pytest.raises(StartError, match=r"fails its certificate on this machine: .* off by 0\.01"):
        make_engine(bundle)


@pytest.mark.parametrize(
    "change",
    [
        {"next_token": {"ids": [99], "logprobs": [0.0]}},
        {"next_token": None},
        {"greedy": {"ids": [4, 99], "logprobs": [0.0, 0.0, 0.0]}},
        {"greedy": {"ids": [4, 5], "logprobs": [0.0]}},
        {"greedy": {"ids": [], "logprobs": []}},
        {"beam": {"ids": [4]}},
        {"source_ids": [5] * 64},
    ],
    ids=str,
)
def test_a_certificate_that_makes_no_sense_does_not_start(bundle: Bundle, change: dict[str, Any]) -> None:
    bundle.certificate["samples"][0].update(change)
    with pytest.raises(StartError, match="certificate cannot be read"):
        make_engine(bundle)


@pytest.mark.parametrize("where", ["greedy", "next_token"])
def test_a_stored_log_probability_that_is_no_number_does_not_start(bundle: Bundle, where: str) -> None:
    bundle.certificate["samples"][2][where]["logprobs"][1] = math.nan
    with pytest.raises(StartError, match=r"fails its certificate .* are not numbers"):
        make_engine(bundle)


def test_a_model_that_gives_nan_for_any_token_does_not_start(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token 9 is none that the certificate has the log-probability of."""
    spoil_steps(monkeypatch, lambda _: True, lambda logprobs: np.copyto(logprobs[:, 9], math.nan))
    with pytest.raises(StartError, match="are not numbers"):
        make_engine(bundle)


def spoil_steps(monkeypatch: pytest.MonkeyPatch, chosen: Any, spoil: Any) -> None:
    """Change the log-probabilities of the steps of some runners."""
    real = Runner.run

    def step(self: Runner, *arguments: Any) -> StepOutputs:
        outputs = real(self, *arguments)
        if chosen(self):
            spoil(outputs.logprobs)
        return outputs

    replace_step(monkeypatch, step)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_runtime_that_drifts_does_not_start_be_it_wide_or_narrow(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    def drift(logprobs: Any) -> None:
        logprobs += 0.01

    assert make_engine(bundle, threads=2, lanes=2).description.lanes == 2
    spoil_steps(monkeypatch, lambda runner: runner.threads == threads, drift)
    with pytest.raises(StartError, match="fails its certificate"):
        make_engine(bundle, threads=2, lanes=2)


@pytest.mark.parametrize(("threads", "lanes"), [(1, 1), (2, 1), (2, 2), (3, 3), (4, 2)])
def test_every_lane_and_every_runtime_replays_every_sample(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, threads: int, lanes: int
) -> None:
    replayed: dict[tuple[Lane, Runtime], set[Any]] = {}
    real = Lane.replay

    def replay(self: Lane, jobs: Sequence[Any], runtime: Runtime) -> None:
        replayed.setdefault((self, runtime), set()).update(job.task for job in jobs)
        real(self, jobs, runtime)

    monkeypatch.setattr(Lane, "replay", replay)
    engine = make_engine(bundle, threads=threads, lanes=lanes)
    assert {lane for lane, _ in replayed} == set(engine._lanes)
    assert {runtime for _, runtime in replayed} == {engine._resources.all_threads, engine._resources.lane_share}
    assert all({task.source for task in tasks} == set(map(tuple, SOURCES)) for tasks in replayed.values())


def test_the_stored_beam_answer_is_checked(bundle: Bundle, model: Transformer) -> None:
    for sample in bundle.certificate["samples"]:
        sample["beam"] = make_answer(reference.beam(model, sample["source_ids"], 3, max_length=8)[0])
    assert make_engine(bundle).description.certificate.drift < 1e-4
    bundle.certificate["samples"][1]["beam"]["logprobs"][-1] += 0.01
    with pytest.raises(StartError, match=r"off by 0\.01"):
        make_engine(bundle)


def test_an_answer_that_reaches_the_models_length_limit_is_replayed(model: Transformer, tmp_path: Path) -> None:
    bundle = make_bundle(model, tmp_path / "bundle", ("fp32",), sample_length=64)
    lengths = [len(sample["greedy"]["ids"]) for sample in bundle.certificate["samples"]]
    assert max(lengths) == bundle.limits["max_target_length"] == 64
    assert make_engine(bundle).description.certificate.drift < 1e-4


@pytest.mark.parametrize(
    "settings", [{"max_queue_requests": 1}, {"max_queue_tokens": 1}, {"max_rows": 1}, {"max_rows": 3}], ids=str
)
def test_the_certificate_needs_no_room_in_the_queue_and_no_more_rows_than_there_are(
    bundle: Bundle, settings: dict[str, int]
) -> None:
    assert make_engine(bundle, **settings).description.certificate.samples == len(SOURCES)


def test_what_onnxruntime_says_of_a_graph_that_fails_is_a_sentence(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("indices element out of data bounds\nand more")

    replace_step(monkeypatch, fail)
    with pytest.raises(StartError, match=r"cannot be replayed on this machine: indices element out of data bounds$"):
        make_engine(bundle)


def decoder(error: float = 0.0) -> Any:
    """Log-probability -1 for everything, and some error in what is scored."""

    def decode(tasks: Sequence[Task]) -> list[Result]:
        results: list[Result] = []
        for task in tasks:
            if isinstance(task, NextToken):
                results.append(Distribution(np.full(11, -1.0), (), NO_TIME))
            else:
                assert isinstance(task, Score)
                results.append(Scored((-1.0 + error,) * (len(task.target) + 1), NO_TIME))
        return results

    return decode


def certified(bundle: Bundle, *samples: dict[str, Any]) -> Bundle:
    bundle.certificate["samples"] = list(samples)
    return bundle


SAMPLE = {
    "source_ids": [4],
    "greedy": {"ids": [5], "logprobs": [-1.0, -1.0]},
    "next_token": {"ids": [5], "logprobs": [-1.0]},
}


def test_the_drift_is_the_largest_of_all_decoders(bundle: Bundle) -> None:
    decoders = [decoder(1e-6), decoder(-3e-5), decoder()]
    assert check_certificate(certified(bundle, SAMPLE), "fp32", decoders).drift == pytest.approx(3e-5)


@pytest.mark.parametrize("order", [(math.nan, 0.0), (0.0, math.nan)], ids=str)
def test_nan_from_any_decoder_is_refused(bundle: Bundle, order: tuple[float, ...]) -> None:
    with pytest.raises(StartError, match="are not numbers"):
        check_certificate(certified(bundle, SAMPLE), "fp32", [decoder(error) for error in order])


def test_equal_tasks_are_decoded_once_and_compared_with_each_stored_answer(bundle: Bundle) -> None:
    asked: list[Task] = []

    def decode(tasks: Sequence[Task]) -> list[Result]:
        asked.extend(tasks)
        return decoder()(tasks)  # type: ignore[no-any-return]

    wrong = {**SAMPLE, "beam": {"ids": [5], "logprobs": [-1.0, -1.5]}}
    with pytest.raises(StartError, match=r"off by 0\.5"):
        check_certificate(certified(bundle, wrong), "fp32", [decode])
    assert asked == [NextToken(source=(4,)), Score(source=(4,), target=(5,))]
