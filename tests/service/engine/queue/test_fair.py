"""Rows are shared fairly: between requests, between clients; a large request locks nobody out and is not locked out."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from attendant.service.engine.batch.job import Job
from attendant.service.engine.observer import EngineObserver
from attendant.service.engine.queue.scheduler import MAX_EXPLAINING_ROWS, MAX_HELD_ITERATIONS, MAX_PASSED, Scheduler
from attendant.service.engine.search.search import SpecialIds
from attendant.service.engine.tasks import AlignmentChoice, AttentionChoice, Explain, Generate, Options, Task
from attendant.service.errors import InvalidFieldError, QueueFullError

SOON = MAX_HELD_ITERATIONS + 1  # iterations in which a job that can be admitted is


def job(steps: int = 10, rows: int = 1, length: int = 3) -> Job:
    """A job that needs so many steps: its max_length."""
    return of(Generate(source=(4,) * length, options=Options(beam_size=rows, max_length=steps)))


def explanation(steps: int = 10, rows: int = 1) -> Job:
    search = Generate(source=(4,), options=Options(beam_size=rows, max_length=steps), record=True)
    choice, alignment = AttentionChoice(kinds=()), AlignmentChoice(layer=0, heads=(0,))
    return of(Explain(search=search, attention=choice, alignment=alignment, alignable=(), max_values=1))


def of(task: Task) -> Job:
    return Job(task, 0, lambda _: None, None, 0.0, SpecialIds(0, 2, 3), EngineObserver())


def steps_of(one: Job) -> int:
    search = one.task.search if isinstance(one.task, Explain) else one.task
    assert isinstance(search, Generate)
    return search.options.max_length


class Lanes:
    """Lanes that decode as the engine's do: in each iteration every lane admits, steps, and releases what is done."""

    def __init__(self, lanes: int = 2, max_rows: int = 64, max_requests: int = 1024, max_tokens: int = 10**6) -> None:
        self.scheduler = Scheduler(lanes, max_rows, max_requests, max_tokens)
        self._left: list[dict[Job, int]] = [{} for _ in range(lanes)]  # steps of each job that are left
        self.iterations = 0
        self.done: dict[Job, int] = {}  # and in which iteration

    def submit(self, jobs: Sequence[Job], client: str | None = None) -> None:
        self.scheduler.submit(jobs, client)

    def iterate(self, count: int = 1) -> None:
        for _ in range(count):
            self.iterations += 1
            for lane, left in enumerate(self._left):
                for admitted in self.scheduler.admit(lane, 10**6):
                    left[admitted] = steps_of(admitted)
                for each in left:
                    left[each] -= 1
                ended = [each for each, steps in left.items() if not steps]
                for each in ended:
                    del left[each]
                    self.done[each] = self.iterations
                self.scheduler.release(lane, ended)

    def rows(self, jobs: Sequence[Job]) -> int:
        """Rows that are held by these."""
        running = set(jobs)
        return sum(each.task.rows for left in self._left for each in left if each in running)

    def iterations_of(self, jobs: Sequence[Job], most: int = 10**5) -> int:
        """How many it takes from now until all of these are done."""
        started = self.iterations
        while not all(each in self.done for each in jobs):
            self.iterate()
            assert self.iterations < started + most
        return max(self.done[each] for each in jobs) - started

    def iterations_of_new(self, jobs: Sequence[Job], client: str | None = None, most: int = 10**5) -> int:
        self.submit(jobs, client)
        return self.iterations_of(jobs, most)


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_small_request_beside_a_large_one_takes_hardly_longer_than_alone(lanes: int, rows: int) -> None:
    alone = Lanes(lanes).iterations_of_new([job(5, rows)])
    busy = Lanes(lanes)
    batch = [job(500, rows=4) for _ in range(97 * lanes)]
    busy.submit(batch)
    busy.iterate(20)
    for _ in range(10):
        assert busy.iterations_of_new([job(5, rows)]) <= alone + SOON
    assert not any(each in busy.done for each in batch)


def test_a_request_of_several_texts_gets_as_many_rows_as_the_one_before_it() -> None:
    lanes, rng = Lanes(), random.Random(0)
    first, second = ([job(rng.randint(20, 60)) for _ in range(500)] for _ in range(2))
    lanes.submit(first)
    lanes.iterate(50)
    lanes.submit(second)
    lanes.iterate(100)
    held = lanes.rows(first), lanes.rows(second)
    assert sum(held) >= 2 * (64 - 8) - 2
    assert abs(held[0] - held[1]) <= 8


def test_clients_have_equal_rows_however_many_requests_they_send() -> None:
    lanes, rng = Lanes(), random.Random(1)
    many, one = ([job(rng.randint(20, 60)) for _ in range(500)] for _ in range(2))
    for each in many:
        lanes.submit([each], "many")
    lanes.iterate(50)
    lanes.submit(one, "one")
    lanes.iterate(100)
    assert abs(lanes.rows(many) - lanes.rows(one)) <= 8


def test_a_client_that_holds_nothing_gets_in_beside_one_that_fills_the_lanes() -> None:
    lanes = Lanes()
    for _ in range(300):
        lanes.submit([job(1000)], "first")
    lanes.iterate(20)
    assert lanes.iterations_of_new([job(5)], "second") <= 5 + SOON
    with pytest.raises(AssertionError):
        lanes.iterations_of_new([job(5)], "first", most=100)


def test_texts_of_one_request_are_decoded_in_their_order() -> None:
    lanes = Lanes(1, max_rows=4)
    batch = [job(10) for _ in range(40)]
    lanes.submit(batch)
    lanes.iterations_of(batch)
    assert [lanes.done[each] for each in batch] == sorted(lanes.done[each] for each in batch)


def test_nobody_waits_for_ever_however_many_small_requests_come() -> None:
    """Nor does one that needs all rows of a lane at once."""
    lanes, rng = Lanes(), random.Random(2)
    batch, wide = [job(50, rows=4) for _ in range(16)], job(20, rows=64)
    lanes.submit(batch)
    lanes.submit([wide])
    for _ in range(1500):
        while lanes.scheduler.count_waiting() < 200:
            lanes.submit([job(rng.randint(1, 12))])
        lanes.iterate()
    assert wide in lanes.done
    assert all(each in lanes.done for each in batch)


def test_a_wide_request_that_must_wait_is_passed_by_small_ones_but_not_for_ever() -> None:
    lanes = Lanes(1)
    lanes.submit([job(300, rows=4) for _ in range(20)])
    lanes.iterate(5)
    wide = job(10, rows=32)
    lanes.submit([wide])
    small = [job(3) for _ in range(2 * MAX_PASSED)]
    for each in small:
        lanes.submit([each])
    lanes.iterate(200)
    assert MAX_PASSED - 8 <= sum(each in lanes.done for each in small) <= MAX_PASSED
    lanes.iterations_of([wide])
    lanes.iterate(100)
    assert all(each in lanes.done for each in small)


def test_lanes_are_never_idle_while_anything_fits() -> None:
    """Every mixture ends, and lanes have at least the rows that are not kept for others while enough texts wait."""
    for seed in range(30):
        rng = random.Random(seed)
        lanes = Lanes(rng.choice([1, 2, 3]), rng.choice([1, 4, 16, 64]))
        most = lanes.scheduler.max_rows
        batches = [
            [job(rng.randint(1, 30), rng.randint(1, most)) for _ in range(rng.randint(1, 40))]
            for _ in range(rng.randint(1, 12))
        ]
        for number, batch in enumerate(batches):
            lanes.submit(batch, rng.choice([None, f"client {number % 3}"]))
        lanes.iterations_of([each for batch in batches for each in batch])
        assert lanes.scheduler.count_running() == lanes.scheduler.count_waiting() == 0
        assert lanes.scheduler._lanes.rows == [0] * len(lanes.scheduler._lanes.rows)


def test_few_explanations_are_decoded_at_once_and_others_pass_them() -> None:
    lanes = Lanes()
    waiting = [explanation(100, rows=8) for _ in range(8)]
    for each in waiting:
        lanes.submit([each])
    lanes.iterate(5)
    assert lanes.rows(waiting) == MAX_EXPLAINING_ROWS
    assert lanes.iterations_of_new([job(5)]) <= 5 + SOON
    assert lanes.iterations_of(waiting) <= 100 * 4 + 4 * SOON


def test_one_explanation_of_more_rows_than_that_is_decoded_alone() -> None:
    lanes = Lanes()
    wide = [explanation(10, rows=32) for _ in range(3)]
    for each in wide:
        lanes.submit([each])
    lanes.iterate(2)
    assert lanes.rows(wide) == 32
    lanes.iterations_of(wide)


def fill(scheduler: Scheduler) -> None:
    """Small requests, until one is refused."""
    for _ in range(10**5):
        try:
            scheduler.submit([job(10)])
        except QueueFullError:
            return


def test_a_request_that_nearly_fills_the_queue_is_accepted_though_small_ones_fill_it_whenever_they_can() -> None:
    lanes = Lanes(max_tokens=20_000)
    for _ in range(50):
        fill(lanes.scheduler)
        lanes.iterate()
    fill(lanes.scheduler)
    lanes.submit([job(190) for _ in range(100)])


@pytest.mark.parametrize("texts", [99, 250])
def test_a_small_request_is_accepted_though_a_large_one_fills_the_queue(texts: int) -> None:
    """A large one may be larger than the whole queue."""
    lanes = Lanes(max_tokens=20_000)
    lanes.submit([job(190) for _ in range(texts)])
    lanes.submit([job(10)])


def test_large_requests_are_refused_once_those_that_wait_fill_the_queue() -> None:
    lanes = Lanes(max_tokens=20_000)
    lanes.submit([job(190) for _ in range(90)])
    lanes.submit([job(190) for _ in range(250)])
    with pytest.raises(QueueFullError):
        lanes.submit([job(190) for _ in range(90)])
    lanes.submit([job(10)])


def test_the_number_of_texts_keeps_neither_out_either() -> None:
    lanes = Lanes(max_requests=100)
    lanes.submit([job(10) for _ in range(99)])
    fill(lanes.scheduler)
    lanes.submit([job(10) for _ in range(99)])
    with pytest.raises(QueueFullError):
        lanes.submit([job(10)])
    with pytest.raises(InvalidFieldError, match="101 inputs, and the whole queue holds 100"):
        lanes.submit([job(10) for _ in range(101)])


def test_a_client_that_waits_for_nothing_is_accepted_though_others_fill_the_queue() -> None:
    lanes = Lanes(max_requests=16)
    for _ in range(16):
        lanes.submit([job(10)], "first")
    with pytest.raises(QueueFullError):
        lanes.submit([job(10)], "first")
    lanes.submit([job(10)], "second")
    with pytest.raises(QueueFullError):
        lanes.submit([job(10)], "second")
    with pytest.raises(QueueFullError):
        lanes.submit([job(10)])
