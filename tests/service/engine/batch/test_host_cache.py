"""KV caches: rows keep what is theirs, on the host and on a device, through branches, departures and growth."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from attendant.export.bundle import Bundle, Sizes
from attendant.model.search import reference
from attendant.model.text.tokenizer import BOS
from attendant.model.transformer import Transformer
from attendant.service.engine.batch.device_cache import DeviceKVCache, round_up
from attendant.service.engine.batch.host_cache import HostKVCache
from attendant.service.engine.batch.kv_cache import LENGTH_UNIT, NEW_ROW, Encoded, EncodedSources
from attendant.service.engine.batch.runner import Runner
from attendant.service.engine.batch.runtime import Runtime
from tests.kernels.needed import needs_kernels
from tests.support.engines import make_bundle
from tests.support.small_models import make_model

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


def encoded(cache: HostKVCache, number: int, width: int = 8) -> Encoded:
    """A source whose keys, values and scales are all this number."""
    return Encoded(EncodedSources(tuple(np.full_like(kind.empty(1, width), number) for kind in cache._kinds)), 0)


def filled(rows: int = 4, width: int = 8, dtype: str = "float32") -> HostKVCache:
    """A host cache whose row r holds the number r + 1 everywhere."""
    cache = HostKVCache(SIZES, 6, dtype)
    for row in range(rows):
        cache.put(row, encoded(cache, row + 1, width), width)
        for planes in cache._past:
            planes.values[:, row] = row + 1
    return cache


def contents(cache: HostKVCache, row: int, position: int) -> tuple[set[float], list[float]]:
    """What a row holds of its source, and of each of its tokens."""
    source = {value for planes in cache._cross for value in planes.values[:, cache.source_rows[row]].ravel().tolist()}
    tokens = cache._past[0].values[0, row, 0, :position, 0]
    for planes in cache._past:
        assert (planes.values[:, row, :, :position] == tokens[:, None]).all()
    return source, tokens.tolist()


def test_a_row_that_moves_takes_its_source_and_its_tokens_with_it() -> None:
    cache = filled()
    cache.reorder([3, 1], position=5)
    assert contents(cache, 0, 5) == ({4.0}, [4.0] * 5)
    assert contents(cache, 1, 5) == ({2.0}, [2.0] * 5)


def test_of_a_row_with_shared_tokens_only_the_others_are_copied() -> None:
    cache = filled()
    cache.reorder([0, 0, 2, 3], position=5, shared=[0, 3, 0, 0])
    assert contents(cache, 1, 5) == ({1.0}, [2.0] * 3 + [1.0] * 2)


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
    first, layout = cache._past[0].values.ctypes.data, cache.layout
    cache.reserve(4, LENGTH_UNIT)
    cache.reorder([], 0)
    cache.put(0, encoded(cache, 1), 8)
    assert (cache._past[0].values.ctypes.data, cache.layout) == (first, layout)


def test_with_int8_the_scales_move_with_their_keys_and_values() -> None:
    cache = filled(dtype="int8")
    assert len(cache._past) == len(cache._cross) == 2
    cache.reserve(4, LENGTH_UNIT)
    cache.reorder([3, 1, 1], position=LENGTH_UNIT, shared=[0, 0, 3], width=4)
    assert contents(cache, 0, LENGTH_UNIT) == ({4}, [4] * LENGTH_UNIT)
    assert contents(cache, 2, LENGTH_UNIT) == ({2}, [3] * 3 + [2] * (LENGTH_UNIT - 3))


def test_the_hypotheses_of_a_beam_share_their_source() -> None:
    cache = filled(rows=2)
    cache.reorder([0, 1, 0, 0], position=5)
    assert cache.source_rows[:4].tolist() == [0, 1, 0, 0]


def test_a_source_that_no_row_needs_makes_room_for_another() -> None:
    cache = filled(rows=6)
    for number in range(7, 40):
        cache.reorder([1, *range(1, 5)], position=5)  # row 0's source leaves, row 5's moves into nothing
        cache.put(5, encoded(cache, number), 8)
        assert contents(cache, 5, 0) == ({float(number)}, [])
        cache.reorder([0, 1, 2, 3, 4, NEW_ROW], position=5)


@pytest.mark.parametrize(("value", "rounded"), [(1, 4), (4, 4), (5, 8)])
def test_rounding_up(value: int, rounded: int) -> None:
    assert round_up(value, 4) == rounded


@pytest.fixture(scope="module")
def model() -> Transformer:
    return make_model(seed=3)


@pytest.fixture(scope="module")
def bundle(model: Transformer, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(model, tmp_path_factory.mktemp("bundle") / "small", ("fp32",))


def without_kernel_graphs(bundle: Bundle) -> Bundle:
    plain = copy.deepcopy(bundle)
    plain.variants["fp32"].graphs.pop("kernel_step")
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


@pytest.mark.parametrize("kind", [pytest.param("host", marks=needs_kernels), "device"])
def test_rows_that_branch_leave_and_join_are_decoded_as_torch_does(
    model: Transformer, bundle: Bundle, kind: str
) -> None:
    runtime = Runtime(bundle if kind == "host" else without_kernel_graphs(bundle), "cpu", "fp32", 1)
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
