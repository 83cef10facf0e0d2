"""A short form of the soak, and the arithmetic of its long one."""

from __future__ import annotations

import sys

import pytest

from bench.reliability import soak
from bench.reliability.soak import Sample, by_interval, least_squares
from bench.reliability.soak_requests import requests


def test_a_slope_is_found_with_its_standard_error() -> None:
    line = [(float(x), 3.0 + 2.0 * x) for x in range(10)]
    assert least_squares(line) == pytest.approx((2.0, 0.0))
    noisy = [(x, y + (-1) ** int(x)) for x, y in line]
    slope, error = least_squares(noisy)
    assert abs(slope - 2.0) < 2 * error


def test_a_reload_is_no_outlier_of_its_interval() -> None:
    samples = [Sample(float(at), at, 500 if at % 10 == 0 else 100, 0, 0) for at in range(100)]
    assert {resident for _, resident in by_interval(samples, 10.0)} == {100}


def test_requests_are_the_same_from_a_seed_and_cover_every_dialect() -> None:
    found = requests(seed=3, count=4)
    assert found == requests(seed=3, count=4) != requests(seed=4, count=4)
    paths = {request.path.split("?")[0] for request in found}
    wanted = {"/v1/generate", "/v1/next-token", "/v1/score", "/v1/explain", "/v1/completions", "/v1/chat/completions"}
    assert wanted | {"/translate", "/detect"} <= paths
    assert any(path.endswith("/infer") for path in paths)


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_all_routes_are_answered_as_before_through_reloads_and_clients_that_leave() -> None:
    row = soak.run(seconds=6.0, clients=4, reload_seconds=2.0, rounds=1)
    assert row["wrong"] == []
    assert row["wrong_answers"] == 0
    assert row["reloads"] >= 2
    assert row["requests"] > row["left"] > 0
