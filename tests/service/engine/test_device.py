"""The device path of the engine, with the CPU as the device: outputs stay bound there, and a graph rearranges rows.

A CUDA device runs the same graphs in the same way: `encoder`, `step` and `merge`, in f32 or f16.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attendant.export.bundle import Bundle
from attendant.model.search import reference
from attendant.model.transformer import Transformer
from attendant.service.engine.engine import Engine
from attendant.service.engine.tasks import Generated, NextToken, Score
from tests.service.engine import test_engine as test_engine_engine
from tests.service.engine import test_lifecycle as test_engine_lifecycle
from tests.support import engines
from tests.support.engines import SOURCES, generate, make_engine
from tests.support.small_models import make_model

TOLERANCE = 1e-2  # of a log-probability in f16, as in export.variants

# Every test of the engine, run again here, where `bundle` and `engine` are the fixtures below.
engine_tests = vars(test_engine_engine) | vars(test_engine_lifecycle)
own_bundles = "without_kernel_graphs"  # these take the device path already
globals().update({name: t for name, t in engine_tests.items() if name.startswith("test_") and own_bundles not in name})


def without_kernel_graphs(bundle: Bundle) -> Bundle:
    """Without them the CPU is served as a device is."""
    for variant in bundle.variants.values():
        for graph in ("kernel_encoder", "kernel_step"):
            variant.graphs.pop(graph, None)
    return bundle


@pytest.fixture(scope="module")
def model() -> Transformer:
    return make_model(seed=3)


@pytest.fixture(scope="module")
def bundle(model: Transformer, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return without_kernel_graphs(engines.make_bundle(model, tmp_path_factory.mktemp("bundle") / "device"))


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> Engine:
    return make_engine(bundle)


@pytest.fixture(scope="module")
def int8_engine(bundle: Bundle) -> Engine:
    return make_engine(bundle, precision="int8")


@pytest.fixture(scope="module")
def half_engine(model: Transformer, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    bundle = engines.make_bundle(model, tmp_path_factory.mktemp("bundle") / "half", ("fp16",))
    return make_engine(bundle, precision="fp16")


@pytest.mark.parametrize("beam", [1, 4])
def test_decoding_in_half_precision_is_close_to_the_torch_oracle(
    model: Transformer, half_engine: Engine, beam: int
) -> None:
    answers = half_engine.run([generate(source, beam_size=beam) for source in SOURCES])
    for source, found in zip(SOURCES, answers, strict=True):
        assert isinstance(found, Generated)
        wanted = reference.beam(model, source, beam, max_length=20)[0]
        assert found.hypotheses[0].ids == wanted.ids
        assert found.hypotheses[0].score == pytest.approx(wanted.score(1.0), abs=TOLERANCE)


def test_the_softmax_in_half_precision_is_close_to_torchs(model: Transformer, half_engine: Engine) -> None:
    rng = np.random.default_rng(0)
    pairs = [(rng.integers(4, 13, n % 19 + 1).tolist(), rng.integers(4, 11, n % 9).tolist()) for n in range(40)]
    answers = half_engine.run([NextToken(source=tuple(source), prefix=tuple(prefix)) for source, prefix in pairs])
    for (source, prefix), found in zip(pairs, answers, strict=True):
        wanted = reference.next_logprobs(model, source, tuple(prefix))
        np.testing.assert_allclose(np.exp(found.logprobs), np.exp(wanted), atol=TOLERANCE)


def test_answers_in_half_precision_are_close_whatever_else_is_in_flight(half_engine: Engine) -> None:
    """Rows join, branch, end and leave, of all lengths; in f16 the last bits may differ."""
    rng = np.random.default_rng(1)
    drawn = [rng.integers(4, 13, rng.integers(1, 40)).tolist() for _ in range(24)]
    tasks: list[Any] = [generate(source, beam_size=1 + i % 4, max_length=12) for i, source in enumerate(drawn)]
    together = half_engine.run(tasks)
    same = 0
    for task, found in zip(tasks, together, strict=True):
        [alone] = half_engine.run([task])
        mine, theirs = alone.hypotheses[0], found.hypotheses[0]
        same += mine.ids == theirs.ids
        assert mine.score == pytest.approx(theirs.score, abs=TOLERANCE)
        [scored] = half_engine.run([Score(source=task.source, target=theirs.ids)])
        assert scored.logprobs[: len(theirs.logprobs)] == pytest.approx(theirs.logprobs, abs=TOLERANCE)
    assert same >= len(tasks) - 1


@pytest.mark.parametrize("kind", ["fast", "device"])
def test_the_longest_source_is_decoded_whatever_the_largest_length(kind: str, tmp_path: Path) -> None:
    """Sources are padded to a multiple of 4, of which the largest length is none."""
    model = make_model(seed=3, max_length=30)
    bundle = engines.make_bundle(model, tmp_path / "bundle", ("fp32",))
    engine = make_engine(bundle if kind == "fast" else without_kernel_graphs(bundle))
    [found] = engine.run([generate([5] * 29, max_length=8)])
    assert isinstance(found, Generated)
    assert found.hypotheses[0].ids == reference.greedy(model, [5] * 29, max_length=8).ids
