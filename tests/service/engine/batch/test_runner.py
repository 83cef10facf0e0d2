"""The runner: the most probable tokens of a step; bindings that are bounded and hold no memory of their own."""

from __future__ import annotations

import numpy as np
import pytest

from attendant.export.bundle import Bundle
from attendant.service.engine.batch.host_cache import HostKVCache
from attendant.service.engine.batch.kv_cache import NEW_ROW
from attendant.service.engine.batch.runner import MAX_BINDINGS, Runner
from attendant.service.engine.batch.runtime import Runtime
from attendant.service.engine.resources import CACHE_SHARE, rows_that_fit
from attendant.service.engine.search.distributions import most_probable
from tests.kernels.needed import needs_kernels
from tests.support.engines import make_bundle
from tests.support.small_models import make_model

ROWS = 20
VOCABULARY = 11


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(make_model(seed=3), tmp_path_factory.mktemp("bundle") / "small", ("fp32",))


@pytest.fixture(scope="module")
def runtime(bundle: Bundle) -> Runtime:
    return Runtime(bundle, "cpu", "fp32", 1)


def encoded(runtime: Runtime, rows: int = ROWS) -> Runner:
    """A runner with as many rows of one source each."""
    runner = Runner(runtime, ROWS)
    runner.encode([(4 + row % 9, 5, 6) for row in range(rows)], 0, 4)
    runner.cache.reorder([NEW_ROW] * rows, 0)
    return runner


def step(runner: Runner, rows: int, top_k: int) -> np.ndarray:
    outputs = runner.step([2] * rows, [0] * rows, [4] * rows, top_k)
    assert outputs.top_ids.shape == outputs.top_logprobs.shape == (rows, min(top_k, VOCABULARY))
    for row in range(rows):
        expected = most_probable(outputs.logprobs[row], top_k)
        assert outputs.top_ids[row].tolist() == expected.tolist()
        assert outputs.top_logprobs[row].tolist() == outputs.logprobs[row][expected].tolist()
    return outputs.logprobs.copy()


@pytest.mark.parametrize("top_k", [1, 2, 10, 11, 5000])
def test_a_steps_candidates_are_the_most_probable_tokens_of_each_row(runtime: Runtime, top_k: int) -> None:
    step(encoded(runtime), ROWS, top_k)


@needs_kernels
def test_a_step_gives_the_same_bits_whatever_was_bound_before(runtime: Runtime) -> None:
    runner = encoded(runtime)
    alone = step(runner, ROWS, 3)
    for rows, top_k in [(1, 1), (5, 9), (ROWS, 7)]:
        step(runner, rows, top_k)
    np.testing.assert_array_equal(step(runner, ROWS, 3), alone)


@needs_kernels
def test_bindings_are_bounded_and_use_the_runners_own_memory(runtime: Runtime) -> None:
    runner = encoded(runtime)
    for rows in range(1, ROWS + 1):
        for top_k in range(1, VOCABULARY + 3):
            step(runner, rows, top_k)
            assert len(runner._bindings) <= MAX_BINDINGS
    assert len(runner._bindings) > ROWS
    for binding in runner._bindings.values():
        assert np.shares_memory(binding.outputs.top_ids, runner.top_ids)
        assert np.shares_memory(binding.outputs.top_logprobs, runner.top_logprobs)
        assert np.shares_memory(binding.outputs.logprobs, runner._logprobs)


def test_another_number_of_threads_gives_the_same_bits(runtime: Runtime) -> None:
    runner = encoded(runtime)
    before = step(runner, ROWS, 3)
    runner.set_runtime(runtime.with_threads(2))
    np.testing.assert_array_equal(step(runner, ROWS, 3), before)


def test_a_runner_that_was_probed_steps_as_one_that_was_not(runtime: Runtime) -> None:
    probed = Runner(runtime, ROWS)
    assert probed.probe() > 0
    probed.encode([(4, 5, 6)], 0, 4)
    probed.cache.reorder([NEW_ROW], 0)
    np.testing.assert_array_equal(step(probed, 1, 3), step(encoded(runtime, 1), 1, 3))


@needs_kernels
def test_what_a_step_gives_is_part_of_the_memory_that_a_row_is_counted_with(
    bundle: Bundle, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner's tensors for as many rows as fit take no more than their share of the memory limit."""
    monkeypatch.setattr("attendant.service.engine.resources.memory_limit", lambda: 10_000_000)
    runner = Runner(runtime, rows_that_fit(bundle, "float32"))
    cache = runner.cache
    assert isinstance(cache, HostKVCache)
    blocks = [planes.block for planes in (*cache._past, *cache._cross)]
    arrays = [*blocks, runner.top_ids, runner.top_logprobs, runner._logprobs]
    assert sum(array.nbytes for array in arrays) <= CACHE_SHARE * 10_000_000
