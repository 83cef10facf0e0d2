"""Who runs where: many rows are spread over the lanes, few stay together; who leaves the queue, and when to retry."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from attendant.service.engine.batch.job import Job
from attendant.service.engine.observer import EngineObserver
from attendant.service.engine.queue.scheduler import ENOUGH_SOURCE_TOKENS, MAX_HELD_ITERATIONS, ROWS_PER_LANE, Scheduler
from attendant.service.engine.search.search import SpecialIds
from attendant.service.engine.tasks import EventCallback, Finished, Generate, NewTokens, Options
from attendant.service.errors import CancelledError, NotReadyError, QueueFullError
from tests.support.engines import Callback


def ignore(_: NewTokens | Finished) -> None:
    pass


def job(
    beam_size: int = 1,
    length: int = 3,
    deadline: float | None = None,
    max_length: int = 10,
    on_event: EventCallback = ignore,
) -> Job:
    task = Generate(source=(4,) * length, options=Options(beam_size=beam_size, max_length=max_length))
    return Job(task, 0, on_event, deadline, 0.0, SpecialIds(0, 2, 3), EngineObserver())


def jobs(count: int, **kind: Any) -> list[Job]:
    return [job(**kind) for _ in range(count)]


def scheduler(lanes: int = 2, max_rows: int = 64, max_requests: int = 1000, max_tokens: int = 1_000_000) -> Scheduler:
    return Scheduler(lanes, max_rows, max_requests, max_tokens)


def submit_each(held: Scheduler, submitted: list[Job]) -> None:
    """Every job as a request of its own."""
    for one in submitted:
        held.submit([one])


def admit(held: Scheduler, lane: int, max_source_tokens: int = 999) -> int:
    return len(held.admit(lane, max_source_tokens))


def occupy(held: Scheduler, lane: int, count: int) -> None:
    """A lane that has taken so many jobs of a row each."""
    held._lanes.rows[lane] += count
    held._lanes.jobs[lane] += count


def test_few_rows_stay_together_so_that_one_lane_has_every_processor() -> None:
    held = scheduler()
    held.submit(jobs(ROWS_PER_LANE - 1))
    assert admit(held, 1) == 0
    assert admit(held, 0) == ROWS_PER_LANE - 1
    assert held.alone(0)
    held.submit([job(length=ENOUGH_SOURCE_TOKENS)])
    assert admit(held, 1) == 0
    assert admit(held, 0) == 1


def test_few_rows_join_the_lane_that_has_some() -> None:
    held = scheduler()
    occupy(held, 1, 1)
    held.submit([job()])
    assert admit(held, 0) == 0
    assert admit(held, 1) == 1


def test_many_rows_are_spread_evenly_whichever_lane_asks_first() -> None:
    held = scheduler()
    held.submit(jobs(40))
    assert admit(held, 1) == 20
    first = held.admit(0, 999)
    assert len(first) == 20
    assert not held.alone(0)
    held.release(0, first[:10])
    held.submit(jobs(8))
    assert admit(held, 1) == 0
    assert admit(held, 0) == 8


@pytest.mark.parametrize("lanes", [2, 3, 5, 8])
@pytest.mark.parametrize("rows", [1, 23, 24, 40, 100, 300])
def test_as_many_lanes_as_rows_are_worth_share_them_evenly(lanes: int, rows: int) -> None:
    held = scheduler(lanes=lanes)
    submit_each(held, jobs(rows))
    taken = [admit(held, lane) for lane in random.Random(rows).sample(range(lanes), lanes)]
    busy = [count for count in taken if count]
    wanted = max(1, rows // ROWS_PER_LANE)
    assert len(busy) == min(lanes, wanted)
    assert sum(busy) == min(rows, lanes * held.max_rows)
    assert max(busy) - min(busy) < len(busy)


@pytest.mark.parametrize("lanes", [3, 8])
def test_no_lane_starves_while_many_jobs_come_and_go(lanes: int) -> None:
    held, rng = scheduler(lanes=lanes, max_rows=16), random.Random(lanes)
    batches: list[list[Job]] = [[] for _ in range(lanes)]
    order: list[Job] = []
    submitted = jobs(600)
    submit_each(held, submitted)
    for _ in range(2000):
        lane = rng.randrange(lanes)
        leaving = [one for one in batches[lane] if rng.random() < 0.3]
        held.release(lane, leaving)
        taken = held.admit(lane, 999)
        batches[lane] = [one for one in batches[lane] if one not in leaving] + taken
        order += taken
        if held.count_waiting() >= lanes * held.max_rows:
            assert len(batches[lane]) == held.max_rows
    assert order == submitted  # first come, first served


def test_rows_never_exceed_what_a_lane_can_hold() -> None:
    held = scheduler(max_rows=6)
    held.submit(jobs(4, beam_size=4))
    for lane in (0, 1):
        assert [admit(held, lane), admit(held, lane)] == [1, 0]
    assert held.count_waiting() == 2


def test_a_job_that_does_not_fit_beside_a_few_rows_goes_to_a_lane_of_its_own() -> None:
    held = scheduler(max_rows=16)
    occupy(held, 0, 10)
    held.submit([job(beam_size=8)])
    assert admit(held, 0) == 0
    assert admit(held, 1) == 1


def test_a_wide_job_that_fits_in_no_busy_lane_goes_to_an_idle_one_though_enough_are_busy() -> None:
    held = scheduler(lanes=4, max_rows=8)
    for lane in (0, 1):
        occupy(held, lane, 2)
    held.submit([job(beam_size=8)])
    assert [admit(held, lane) for lane in (0, 1, 2, 3)] == [0, 0, 1, 0]


@pytest.mark.parametrize("leaves", ["admitted", "cancelled"])
def test_a_lane_that_sleeps_is_woken_for_a_wide_job_once_the_one_before_it_has_left_the_queue(leaves: str) -> None:
    held = scheduler(lanes=4, max_rows=8)
    for lane in (0, 1):
        occupy(held, lane, 2)
    narrow = held.submit([job(beam_size=2)])
    held.submit([job(beam_size=8)])
    sleeping = threading.Thread(target=held.wait_for_work, args=(2,), daemon=True)
    sleeping.start()
    sleeping.join(0.05)
    assert sleeping.is_alive()
    held.admit(0, 999) if leaves == "admitted" else narrow.cancel()
    sleeping.join(5)
    assert not sleeping.is_alive()
    assert admit(held, 2) == 1


def test_every_job_is_counted_once_from_its_admission_to_its_release() -> None:
    held = scheduler()
    held.submit(jobs(30, beam_size=2))
    taken = {lane: held.admit(lane, 999) for lane in (0, 1)}
    assert (held.count_running(), held.count_waiting()) == (30, 0)
    for lane, admitted in taken.items():
        for one in admitted:
            held.release(lane, [one])
    assert held.count_running() == 0
    assert held._lanes.rows == [0, 0]


def test_sources_to_encode_between_two_steps_are_bounded_but_one_always_goes() -> None:
    held = scheduler(lanes=1)
    held.submit(jobs(5, length=9))
    assert [admit(held, 0, 25), admit(held, 0, 1)] == [2, 1]


def test_short_sources_wait_some_steps_for_others_so_that_they_are_encoded_together() -> None:
    held = scheduler(lanes=1)
    occupy(held, 0, 20)
    held.submit([job(length=3)])
    assert [admit(held, 0) for _ in range(MAX_HELD_ITERATIONS + 1)] == [0] * MAX_HELD_ITERATIONS + [1]
    held.submit([job(length=3)])
    assert admit(held, 0) == 0
    held.submit([job(length=ENOUGH_SOURCE_TOKENS)])
    assert admit(held, 0) == 2


def test_a_source_worth_a_run_of_the_encoder_does_not_wait_nor_does_one_with_few_beside_it() -> None:
    held = scheduler(lanes=1)
    occupy(held, 0, 20)
    held.submit([job(length=ENOUGH_SOURCE_TOKENS)])
    assert admit(held, 0) == 1
    held = scheduler(lanes=1)
    occupy(held, 0, 2)
    held.submit([job(length=3)])
    assert admit(held, 0) == 1


def test_tokens_that_wait_are_those_of_the_jobs_that_wait() -> None:
    held = scheduler()
    submitted = jobs(3, beam_size=2)
    submission = held.submit(submitted[:2])
    held.submit(submitted[2:])
    assert held.count_waiting_tokens() == sum(each.task.token_budget for each in submitted)
    submission.cancel()
    assert held.count_waiting_tokens() == submitted[2].task.token_budget
    assert admit(held, 0) == 1
    assert held.count_waiting_tokens() == 0


def test_cancelled_jobs_leave_the_queue_at_once_wherever_they_are_in_it() -> None:
    held, outcomes = scheduler(max_requests=4), Callback()
    held.submit(jobs(2))
    submission = held.submit([job(on_event=outcomes)])
    held.submit([job()])
    with pytest.raises(QueueFullError):
        held.submit([job()])
    submission.cancel()
    assert isinstance(outcomes.wait()[0], CancelledError)
    assert held.count_waiting() == 3
    held.submit([job()])


def test_cancelled_jobs_free_their_token_budget() -> None:
    held = scheduler(max_tokens=100)
    submissions = [held.submit([job(max_length=6)]) for _ in range(10)]
    with pytest.raises(QueueFullError):
        held.submit([job(max_length=6)])
    submissions[3].cancel()
    held.submit([job(max_length=6)])


def test_cancelling_twice_or_after_the_job_was_admitted_is_not_counted_twice() -> None:
    held = scheduler()
    submission = held.submit(jobs(3))
    assert admit(held, 0, 8) == 2
    submission.cancel()
    submission.cancel()
    assert (held.count_waiting(), held.count_running()) == (0, 2)
    held.submit([job(length=ENOUGH_SOURCE_TOKENS)])
    assert admit(held, 0) == 1


def test_expired_jobs_leave_the_queue_wherever_they_are_in_it() -> None:
    held = scheduler()
    waiting = [job(), job(deadline=5.0), job(deadline=1.0), job(deadline=3.0)]
    held.submit(waiting)
    assert held.expire(0.9) == []
    assert held.expire(3.0) == waiting[2:]
    assert held.expire(3.0) == []
    assert held.expire(6.0) == [waiting[1]]
    assert held.admit(0, 999) == [waiting[0]]


def test_whoever_waits_for_deadlines_is_woken_by_an_earlier_one() -> None:
    held = scheduler()
    held.submit([job(deadline=held._clock() + 3600)])
    waiting = threading.Thread(target=held.wait_for_expiry, daemon=True)
    waiting.start()
    held.submit([job(deadline=held._clock())])
    waiting.join(5)
    assert not waiting.is_alive()


def test_whoever_waits_for_deadlines_ends_with_the_lanes() -> None:
    held = scheduler()
    held.stop()
    assert not held.wait_for_expiry()


def test_lanes_that_sleep_end_when_nothing_is_left() -> None:
    held = scheduler()
    held.submit([job()])
    admitted = held.admit(0, 999)
    ended = threading.Thread(target=held.wait_for_work, args=(1,), daemon=True)
    ended.start()
    held.close()
    held.release(0, admitted)
    ended.join(5)
    assert not ended.is_alive()
    assert not held.wait_for_work(0)


def test_lanes_end_when_the_last_waiting_job_was_cancelled() -> None:
    held = scheduler()
    submission = held.submit([job()])
    held.close()
    submission.cancel()
    assert not held.wait_for_work(0)


def test_a_closed_scheduler_takes_nothing_more() -> None:
    held = scheduler()
    held.close()
    with pytest.raises(NotReadyError):
        held.submit([job()])


def test_draining_takes_everything_out_of_the_queue() -> None:
    held = scheduler()
    waiting = jobs(3)
    held.submit(waiting)
    assert held.drain() == waiting
    assert held.count_waiting() == 0


class Overload:
    """A scheduler with a clock of its own: lanes that are always full, and a queue that is filled whenever it can be.

    Each lane decodes a whole batch in `seconds`; the second one begins shortly after the first.
    """

    def __init__(self, lanes: int, rows: int, seconds: float, apart: float, seed: int = 0) -> None:
        self.now, self._random = 0.0, random.Random(seed)
        self.held = Scheduler(lanes, rows, 40 * rows, 10**9, clock=lambda: self.now)
        self._seconds = seconds
        self._events = [(apart * lane, lane) for lane in range(lanes)]
        self._batches: list[list[Job]] = [[] for _ in range(lanes)]
        self.drained = 0  # tokens that have left the queue

    def fill(self) -> None:
        while True:
            try:
                self.held.submit([job(length=self._random.randint(1, 30), max_length=self._random.randint(5, 60))])
            except QueueFullError:
                return

    def step(self) -> None:
        """To the next moment at which a lane has done its batch."""
        self._events.sort()
        self.now, lane = self._events.pop(0)
        self.held.release(lane, self._batches[lane])
        self._batches[lane] = self.held.admit(lane, 10**9)
        self.drained += sum(done.task.token_budget for done in self._batches[lane])
        self._events.append((self.now + self._seconds * self._random.uniform(0.8, 1.2), lane))


@pytest.mark.parametrize("seconds", [0.3, 2.0, 15.0])
@pytest.mark.parametrize("apart", [0.0001, 0.5])
@pytest.mark.parametrize("lanes", [1, 2, 8])
def test_retry_after_is_true_within_a_factor_of_two_under_a_steady_overload(
    seconds: float, apart: float, lanes: int
) -> None:
    load = Overload(lanes, rows=8, seconds=seconds, apart=apart * seconds)
    promises: list[tuple[float, int, int]] = []  # when, whole seconds, tokens that will have left when it comes true
    times = []
    for _ in range(200):
        load.fill()
        promises.append((load.now, load.held.retry_after(), load.drained + load.held.count_waiting_tokens() // 2))
        load.step()
        times.append((load.now, load.drained))
    checked = 0
    for when, promised, tokens in promises[30:]:
        reached = next((now for now, drained in times if drained >= tokens), None)
        if reached is None:
            break
        true = reached - when
        assert min(true, 60) / 2 - 1 <= promised <= 2 * true + 1
        checked += 1
    assert checked > 50


def test_time_without_anything_waiting_does_not_lengthen_retry_after() -> None:
    load = Overload(lanes=2, rows=8, seconds=1.0, apart=0.01)
    for _ in range(60):
        load.fill()
        load.step()
    before = load.held.retry_after()
    load.held.drain()
    load.now += 3600
    load.fill()
    assert load.held.retry_after() <= 2 * before


def test_before_anything_was_measured_retry_after_is_a_second() -> None:
    held = scheduler(max_requests=1)
    held.submit([job()])
    with pytest.raises(QueueFullError) as refused:
        held.submit([job()])
    assert refused.value.retry_after == held.retry_after() == 1
