"""KV caches: rows keep what is theirs, on the host and on a device, through branches, departures and growth."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from export.bundle import Bundle, Sizes
from model import reference
from model.tokenizer import BOS
from model.transformer import Transformer
from service.engine.kv_cache import LENGTH_UNIT, NEW_ROW, DeviceKVCache, HostKVCache, round_up
from service.engine.runner import Runner
from service.engine.runtime import Runtime
from tests.conftest import make_model
from tests.engines import make_bundle

SIZES = Sizes(
    source_vocab=8,
    target_vocab=8,
    d_model=4,
    d_ff=4,
    heads=2,
    encoder_layers=1,
    decoder_layers=1,
    max_length=100,
)


def filled(rows: int = 4, width: int = 8) -> HostKVCache:
    """A host cache whose row r holds the number r + 1 everywhere."""
    cache = HostKVCache(SIZES, 6, "float32")
    cache._set_width(0, width)
    for row in range(rows):
        cache._cross[:, row] = cache._past[:, row] = row + 1
    return cache


def contents(cache: HostKVCache, row: int, position: int) -> tuple[set[float], list[float]]:
    """What a row holds of its source, and of each of its tokens."""
    past = cache._past[:, row, :, :position]
    assert (past == past[:1, :1, :, :1]).all()
    return set(cache._cross[:, row].ravel().tolist()), past[0, 0, :, 0].tolist()


def test_a_row_that_moves_takes_its_source_and_its_tokens_with_it() -> None:
    cache = filled()
    cache.reorder([3, 1], position=5)
    assert contents(cache, 0, 5) == ({4.0}, [4.0] * 5)
    assert contents(cache, 1, 5) == ({2.0}, [2.0] * 5)


def test_of_a_row_with_shared_tokens_only_the_others_are_copied() -> None:
    cache = filled()
    cache.reorder([0, 0, 2, 3], position=5, shared=[0, 3, 0, 0])
    assert contents(cache, 1, 5) == ({2.0}, [2.0] * 3 + [1.0] * 2)


def test_a_new_row_and_one_that_stays_are_left_as_they_are() -> None:
    cache = filled()
    cache.reorder([0, 1, 2, NEW_ROW], position=5)
    assert [contents(cache, row, 5) for row in range(4)] == [({n}, [n] * 5) for n in (1.0, 2.0, 3.0, 4.0)]


def test_rows_keep_what_they_hold_when_the_cache_gets_longer_or_narrower() -> None:
    cache = filled()
    before = cache.layout
    cache.reserve(4, LENGTH_UNIT)
    cache.reorder([0, 1, 2, 3], position=LENGTH_UNIT, width=4)
    assert cache.layout != before
    assert cache.width == 4
    assert [contents(cache, row, LENGTH_UNIT) for row in range(4)] == [
        ({n}, [n] * LENGTH_UNIT) for n in (1.0, 2.0, 3.0, 4.0)
    ]


def test_the_cache_never_gets_longer_than_the_model_can_decode_and_short_again_when_it_is_empty() -> None:
    cache = filled()
    for position in range(SIZES.max_length):
        cache.reserve(4, position)
    assert cache.layout[1] == SIZES.max_length
    cache.reorder([], 0)
    assert cache.layout[1] == LENGTH_UNIT


def test_the_same_layout_and_rows_are_at_the_same_addresses() -> None:
    cache = filled()
    first, layout = cache._past.ctypes.data, cache.layout
    cache.reserve(4, LENGTH_UNIT)
    cache.reorder([], 0)
    cache._set_width(0, 8)
    assert (cache._past.ctypes.data, cache.layout) == (first, layout)


@pytest.mark.parametrize(("value", "rounded"), [(1, 4), (4, 4), (5, 8)])
def test_rounding_up(value: int, rounded: int) -> None:
    assert round_up(value, 4) == rounded


@pytest.fixture(scope="module")
def model() -> Transformer:
    return make_model(seed=3)


@pytest.fixture(scope="module")
def bundle(model: Transformer, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(model, tmp_path_factory.mktemp("bundle") / "small", ("fp32",))


def without_fast_graphs(bundle: Bundle) -> Bundle:
    plain = copy.deepcopy(bundle)
    plain.variants["fp32"].graphs.pop("fast_step")
    return plain


class Decoding:
    """Rows as they should be, beside a runner's: after each step the log-probabilities are torch's."""

    def __init__(self, model: Transformer, runner: Runner) -> None:
        self.model, self.runner = model, runner
        self.rows: list[tuple[list[int], list[int]]] = []  # source, target tokens

    def encode(self, sources: list[list[int]], width: int) -> None:
        held = len(self.rows)
        self.runner.encode([tuple(source) for source in sources], held, width)
        self.rows += [(source, []) for source in sources]
        self.runner.cache.reorder([*range(held), *[NEW_ROW] * len(sources)], self.longest())

    def step(self, tokens: list[int]) -> None:
        for (_, target), token in zip(self.rows, tokens, strict=True):
            target.append(token)
        found = self.runner.step(
            [target[-2] if len(target) > 1 else BOS for _, target in self.rows],
            [len(target) - 1 for _, target in self.rows],
            [len(source) + 1 for source, _ in self.rows],
            3,
        )
        for row, (source, target) in enumerate(self.rows):
            wanted = reference.next_logprobs(self.model, source, tuple(target[:-1]))
            np.testing.assert_allclose(found.logprobs[row], wanted, atol=1e-4)

    def reorder(self, origins: list[int], shared: Any = (), width: int | None = None) -> None:
        self.rows = [(source, list(target)) for source, target in (self.rows[origin] for origin in origins)]
        self.runner.cache.reorder(origins, self.longest(), shared, width)

    def longest(self) -> int:
        return max((len(target) for _, target in self.rows), default=0)


@pytest.mark.parametrize("kind", ["host", "device"])
def test_rows_that_branch_leave_and_join_are_decoded_as_torch_does(
    model: Transformer, bundle: Bundle, kind: str
) -> None:
    runtime = Runtime(bundle if kind == "host" else without_fast_graphs(bundle), "cpu", "fp32", 1)
    runner = Runner(runtime, 8)
    assert isinstance(runner.cache, HostKVCache if kind == "host" else DeviceKVCache)
    rows = Decoding(model, runner)
    rows.encode([[4, 5, 6], [7, 8], [9] * 11], width=12)
    rows.step([4, 5, 6])
    rows.step([7, 8, 9])
    rows.reorder([0, 1, 2, 1, 1])  # a hypothesis branches
    rows.step([4, 5, 6, 7, 8])
    rows.reorder([0, 1, 4, 1, 4], shared=[0, 0, 0, 3, 0])  # the longest source leaves, two share what they had
    rows.step([4, 5, 6, 7, 8])
    rows.reorder([4, 1, 2], width=4)  # the cache gets narrower
    rows.step([9, 9, 9])
    rows.encode([[10, 11, 12, 4, 5, 6, 7]], width=8)  # and wider, with a new row
    for _ in range(LENGTH_UNIT):  # and longer
        rows.step([4, 5, 6, 7])
    rows.reorder([])
    rows.encode([[4, 5]], width=4)
    rows.step([4])
