"""How many lanes an engine has: by threads, weights and memory, and what it says of it."""

from __future__ import annotations

import logging

import pytest

from attendant import kernels
from attendant.export.bundle import Bundle
from attendant.service.engine import resources
from attendant.service.engine.resources import (
    LEAST_LANE_ROWS,
    LEAST_MEMORY_FACTOR,
    MAX_LANES,
    MAX_ROWS,
    choose_lanes,
    lanes_for,
)
from tests.support.engines import make_bundle, make_engine
from tests.support.small_models import make_model

LARGE, SMALL = 80_000_000, 4_000_000  # bytes of weights
ENOUGH = MAX_LANES * MAX_ROWS  # rows


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(make_model(seed=3), tmp_path_factory.mktemp("bundle") / "small", ("fp32",))


@pytest.mark.parametrize(
    ("threads", "large", "small"),
    [(1, 1, 1), (2, 2, 2), (3, 2, 2), (4, 2, 2), (8, 4, 2), (16, 4, 2), (32, 8, 2), (64, 8, 2), (1024, 8, 2)],
)
def test_lanes_by_threads_and_weights(threads: int, large: int, small: int) -> None:
    assert (lanes_for(threads, LARGE), lanes_for(threads, SMALL)) == (large, small)
    assert choose_lanes(threads, LARGE, ENOUGH, 64e9) == (large, None)


@pytest.mark.parametrize(
    ("threads", "rows", "memory", "lanes", "reason"),
    [
        (2, 64, 1e9, 2, None),
        (2, 64, LEAST_MEMORY_FACTOR * LARGE, 2, None),
        (2, 64, LEAST_MEMORY_FACTOR * LARGE - 1, 1, "under 8 times the weights' 80 MB"),
        (1, 64, 1e6, 1, None),
        (2, 63, 1e9, 1, "holds 63 hypotheses of full length"),
        (2, 1, 1e9, 1, "holds 1 hypotheses of full length"),
        (8, 4 * LEAST_LANE_ROWS, 2e9, 4, None),
        (64, 5 * LEAST_LANE_ROWS, 2e9, 5, "a lane is given at least 32"),
    ],
)
def test_lanes_by_memory(threads: int, rows: int, memory: float, lanes: int, reason: str | None) -> None:
    found, why = choose_lanes(threads, LARGE, rows, memory)
    assert found == lanes
    assert why is None if reason is None else reason in (why or "")


def test_more_threads_or_memory_never_mean_fewer_lanes() -> None:
    for rows in range(1, ENOUGH, 50):
        counts = [choose_lanes(threads, LARGE, rows, 64e9)[0] for threads in range(1, 129)]
        assert counts == sorted(counts)
    counts = [choose_lanes(64, LARGE, rows, 1e7 * rows)[0] for rows in range(1, 1000)]
    assert counts == sorted(counts)


@pytest.mark.parametrize(
    ("threads", "lanes", "shared"), [(2, 2, 1), (3, 2, 2), (4, 2, 3), (8, 4, 5), (5, 5, 1), (3, 1, 3)]
)
def test_lanes_have_a_thread_each_and_share_the_others(bundle: Bundle, threads: int, lanes: int, shared: int) -> None:
    found = resources.allocate(bundle, resources.EngineSettings(threads=threads, lanes=lanes))
    loaded = [runtime.session_threads for runtime in (found.all_threads, found.lane_share)]
    assert loaded == [threads, shared]  # one of them is the caller's
    assert (shared - 1 + lanes, found.threads) == (threads, threads)
    assert lanes * found.lane_share.lane_threads <= threads


def test_max_rows_is_for_each_lane_and_takes_none_away(bundle: Bundle) -> None:
    found = resources.allocate(bundle, resources.EngineSettings(threads=4, lanes=4, max_rows=2))
    assert (found.lanes, found.max_rows) == (4, 2)


def test_an_engine_with_little_memory_has_one_lane_and_says_so(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert make_engine(bundle, threads=2).description.lanes == 2
    row = resources.memory_limit() / resources.rows_that_fit(bundle, "float32")
    monkeypatch.setattr(resources, "memory_limit", lambda: int(40 * row))
    with caplog.at_level(logging.INFO, "attendant"):
        described = make_engine(bundle, threads=2).description
    assert (described.lanes, described.threads) == (1, 2)
    assert described.lanes_reason is not None
    messages = [record.getMessage() for record in caplog.records]
    assert [message for message in messages if "lane" in message] == [
        f"1 lane, since {described.lanes_reason}; --lanes sets another number"
    ]


def test_an_engine_without_kernels_says_why_in_the_log(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernels, "why_missing", lambda: "The kernels are not compiled.")
    with caplog.at_level(logging.INFO, "attendant"):
        described = make_engine(bundle).description
    assert (described.kernels, described.kernels_reason) == (None, "The kernels are not compiled.")
    messages = [record.getMessage() for record in caplog.records]
    assert "the portable graphs are used, which are slower. The kernels are not compiled." in messages


def test_lanes_and_rows_that_are_asked_for_are_taken_whatever_memory_says(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = resources.memory_limit() / resources.rows_that_fit(bundle, "float32")
    monkeypatch.setattr(resources, "memory_limit", lambda: int(40 * row))
    asked = make_engine(bundle, threads=2, lanes=2).description
    assert (asked.lanes, asked.lanes_reason) == (2, None)
