"""Who runs where: many rows are spread over the lanes, few stay together, and nothing is forgotten."""

from __future__ import annotations

import threading

from service.engine.engine import make_search
from service.engine.scheduler import ENOUGH_TOKENS, LONGEST_HELD, ROWS_FOR_A_LANE, Job, Scheduler
from service.engine.search import Special
from service.engine.tasks import Finished, Generate, NewTokens, Options


def hear(_: NewTokens | Finished) -> None:
    pass


def job(beam_size: int = 1, length: int = 3, deadline: float | None = None) -> Job:
    task = Generate(source=(4,) * length, options=Options(beam_size=beam_size, max_length=10))
    return Job(task, 0, hear, deadline, 0.0, make_search(Special(0, 2, 3), task))


def scheduler(lanes: int = 2, max_rows: int = 64) -> Scheduler:
    return Scheduler(lanes, max_rows, 1000, 1_000_000)


def test_few_rows_stay_together_so_that_one_lane_has_every_processor() -> None:
    held = scheduler()
    held.submit([job() for _ in range(ROWS_FOR_A_LANE - 1)])
    assert held.admit(1, 0.0, 999) == ([], [])
    assert len(held.admit(0, 0.0, 999)[0]) == ROWS_FOR_A_LANE - 1
    assert held.alone(0)
    held.submit([job(length=ENOUGH_TOKENS)])
    assert held.admit(1, 0.0, 999) == ([], [])
    assert len(held.admit(0, 0.0, 999)[0]) == 1


def test_few_rows_join_the_lane_that_has_some() -> None:
    held = scheduler()
    held.running[1] = [job()]
    held.submit([job()])
    assert held.admit(0, 0.0, 999) == ([], [])
    assert len(held.admit(1, 0.0, 999)[0]) == 1


def test_many_rows_are_spread_evenly_whichever_lane_asks_first() -> None:
    held = scheduler()
    held.submit([job() for _ in range(40)])
    assert len(held.admit(1, 0.0, 999)[0]) == 20
    assert len(held.admit(0, 0.0, 999)[0]) == 20
    assert not held.alone(0)
    held.finished(0, held.running[0][:10], 1.0)
    held.submit([job() for _ in range(8)])
    assert held.admit(1, 0.0, 999) == ([], [])
    assert len(held.admit(0, 0.0, 999)[0]) == 8


def test_rows_never_exceed_what_a_lane_can_hold() -> None:
    held = scheduler(max_rows=6)
    held.submit([job(beam_size=4) for _ in range(4)])
    for lane in (0, 1):
        assert len(held.admit(lane, 0.0, 999)[0]) == 1
        assert held.admit(lane, 0.0, 999) == ([], [])
    assert held.waiting() == 2


def test_a_job_that_does_not_fit_beside_a_few_rows_goes_to_a_lane_of_its_own() -> None:
    held = scheduler(max_rows=16)
    held.running[0] = [job() for _ in range(10)]
    held.submit([job(beam_size=8)])
    assert held.admit(0, 0.0, 999) == ([], [])
    assert len(held.admit(1, 0.0, 999)[0]) == 1


def test_jobs_whose_time_is_up_do_not_run() -> None:
    held = scheduler()
    late = job(deadline=1.0)
    held.submit([late, job()])
    admitted, passed = held.admit(0, 2.0, 999)
    assert passed == [late]
    assert len(admitted) == held.count() == 1


def test_sources_to_encode_between_two_steps_are_bounded_but_one_always_goes() -> None:
    held = scheduler(lanes=1)
    held.submit([job(length=9) for _ in range(5)])
    assert [len(held.admit(0, 0.0, 25)[0]), len(held.admit(0, 0.0, 1)[0])] == [2, 1]


def test_short_sources_wait_some_steps_for_others_so_that_they_are_encoded_together() -> None:
    held = scheduler(lanes=1)
    held.running[0] = [job() for _ in range(20)]
    held.submit([job(length=3)])
    assert [len(held.admit(0, 0.0, 999)[0]) for _ in range(LONGEST_HELD + 1)] == [0] * LONGEST_HELD + [1]
    held.submit([job(length=3)])
    assert held.admit(0, 0.0, 999) == ([], [])
    held.submit([job(length=ENOUGH_TOKENS)])
    assert len(held.admit(0, 0.0, 999)[0]) == 2


def test_a_source_worth_a_run_of_the_encoder_does_not_wait_nor_does_one_with_few_beside_it() -> None:
    held = scheduler(lanes=1)
    held.running[0] = [job() for _ in range(20)]
    held.submit([job(length=ENOUGH_TOKENS)])
    assert len(held.admit(0, 0.0, 999)[0]) == 1
    held.running[0] = [job(), job()]
    held.submit([job(length=3)])
    assert len(held.admit(0, 0.0, 999)[0]) == 1


def test_lanes_that_sleep_end_when_nothing_is_left() -> None:
    held = scheduler()
    only = job()
    held.submit([only])
    held.admit(0, 0.0, 999)
    ended = threading.Thread(target=held.wait_for_work, args=(1,), daemon=True)
    ended.start()
    held.close()
    held.finished(0, [only], 1.0)
    ended.join(5)
    assert not ended.is_alive()
    assert not held.wait_for_work(0)
