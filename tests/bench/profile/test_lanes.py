"""The simulation of lanes, on step times that are made up so that its answer is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attendant.service.engine.queue.scheduler import ROWS_PER_LANE
from attendant.service.engine.resources import MAX_ROWS
from bench.profile.lanes import Costs, Machine, bandwidth_of, closed_cycle, compare, fit, lane_counts, simulate, spread

FREE = Machine(16, 1e18)  # no limit of memory
PLAIN = Costs((1, 64), (0.0, 0.0), (1e-3, 64e-3), (0.0, 0.0), 0)  # threads divide all of it, rows add to it


def full(costs: Costs, machine: Machine) -> dict[int, float]:
    """Tokens a second by number of lanes, each of them full."""
    return {
        lanes: simulate(costs, machine, lanes, lanes * MAX_ROWS).tokens_per_second
        for lanes in lane_counts(machine.cores)
    }


def best(costs: Costs, machine: Machine) -> int:
    rates = full(costs, machine)
    return min(lanes for lanes, rate in rates.items() if rate >= 0.999 * max(rates.values()))


def test_where_threads_divide_everything_lanes_gain_nothing() -> None:
    assert best(PLAIN, FREE) == 1
    assert len({round(rate) for rate in full(PLAIN, FREE).values()}) == 1


def test_the_larger_the_serial_part_the_more_another_lane_gains() -> None:
    gains = []
    for share in (0.0, 0.1, 0.3, 1.0):
        costs = replace(PLAIN, serial=(share * 1e-3, share * 64e-3), parallel=((1 - share) * 1e-3, (1 - share) * 64e-3))
        rates = full(costs, FREE)
        gains.append(rates[16] / rates[1])
    assert gains == sorted(gains)
    assert gains[0] == pytest.approx(1)
    assert gains[-1] == pytest.approx(16)


def test_the_longer_the_lock_is_held_the_fewer_lanes_gain_anything() -> None:
    serial = replace(PLAIN, serial=(1e-3, 10e-3), parallel=(0.0, 0.0))
    gains = []
    for python in (0.0, 1e-3, 10e-3, 100e-3):
        rates = full(replace(serial, python=(python, python)), FREE)
        gains.append(rates[16] / rates[2])
        assert rates[16] <= 64 / max(python, 1e-9) * 1.0001  # one lane at a time
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] < 1.2


def test_at_the_same_rows_in_flight_the_lock_makes_more_lanes_slower() -> None:
    locked = Costs((1, 64), (1e-4, 1e-3), (0.0, 0.0), (3e-4, 6e-4), 0)
    rates = [simulate(locked, FREE, lanes, 192).tokens_per_second for lanes in (4, 8, 16)]
    assert rates == sorted(rates, reverse=True)


def test_where_memory_is_the_limit_lanes_gain_nothing() -> None:
    costs = replace(PLAIN, weight_bytes=10**9)
    rates = full(costs, Machine(16, 1e9))
    assert list(rates.values()) == pytest.approx(
        [64.0] * len(rates)
    )  # every lane reads for a second, one after another
    assert best(costs, Machine(16, 1e9)) == 1


def test_one_busy_lane_has_every_core_and_several_share_those_beside_their_own() -> None:
    for lanes in (1, 2, 4, 16):
        assert simulate(PLAIN, FREE, lanes, 8).step_seconds == pytest.approx(8e-3 / 16)
    assert simulate(PLAIN, FREE, 4, 4 * 64).step_seconds == pytest.approx(64e-3 / 4)
    half = simulate(PLAIN, FREE, 4, 2 * ROWS_PER_LANE)  # 12 cores beside those of the lanes, for two that are busy
    assert half.step_seconds == pytest.approx(1e-3 * ROWS_PER_LANE / 7)


def test_rows_are_spread_as_the_scheduler_does() -> None:
    assert spread(ROWS_PER_LANE, 4) == [ROWS_PER_LANE]
    assert spread(4 * ROWS_PER_LANE, 4) == [ROWS_PER_LANE] * 4
    assert spread(1000, 2) == [MAX_ROWS] * 2


@pytest.mark.parametrize("threads", [(1, 2), (1, 2, 4, 8)])
def test_the_parts_of_a_step_are_found_again(threads: tuple[int, ...]) -> None:
    assert fit({count: 3.0 + 5.0 / count for count in threads}) == pytest.approx((3.0, 5.0))


def test_no_part_of_a_step_is_below_zero() -> None:
    assert fit({1: 4.0, 2: 1.5}) == (0.0, pytest.approx(3.5))
    assert fit({1: 4.0, 2: 5.0}) == (4.0, 0.0)


def test_a_share_that_is_taken_to_be_serial_needs_one_thread() -> None:
    assert fit({1: 4.0}, 0.25) == (1.0, 3.0)


def test_a_turn_takes_at_least_its_own_time_and_that_of_the_lock() -> None:
    assert closed_cycle(1, 3.0, 1.0) == 4.0
    assert closed_cycle(5, 3.0, 0.0) == 3.0
    for lanes in (2, 4, 16):
        cycle = closed_cycle(lanes, 3.0, 1.0)
        assert max(4.0, lanes) < cycle < 3.0 + lanes


def test_bandwidth_grows_with_cores_up_to_a_point() -> None:
    assert [bandwidth_of(cores, 10.0, 2) for cores in (2, 4, 16, 64)] == [10.0, 20.0, 80.0, 80.0]


def test_what_a_choice_loses_is_measured_against_the_best_at_each_load() -> None:
    serial = replace(PLAIN, serial=(1e-3, 1e-3), parallel=(0.0, 0.0))
    loads = {load["rows"]: load for load in compare(serial, FREE, 1)["loads"]}
    assert (loads[1]["best"], loads[1]["regret"]) == (1, 0.0)
    assert loads[None]["best"] == 16
    assert loads[None]["regret"] == pytest.approx(1 - 1 / 16, abs=1e-3)
    assert all(load["regret"] == 0 for load in compare(PLAIN, FREE, 4)["loads"] if load["rows"] is None)
