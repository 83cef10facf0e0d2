"""Outcomes from any threads, in the order of their tasks; a full queue is waited for."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from attendant.service.engine import collect
from attendant.service.engine.collect import Outcomes, submit_when_room
from attendant.service.engine.tasks import Finished, Generate, NewTokens, Options, Scored
from attendant.service.errors import DeadlineError, InvalidFieldError, NotReadyError, QueueFullError
from tests.support.fake_engine import TIMING, FakeEngine, make_bundle

TASK = Generate(source=(5, 6), options=Options(max_length=10))
PATIENCE = 10  # seconds


def scored(number: int) -> Scored:
    return Scored((-float(number),), TIMING)


def test_outcomes_are_in_the_order_of_their_tasks_and_tokens_are_none() -> None:
    outcomes = Outcomes(3)
    for index in (2, 0, 1):
        outcomes.on_event(NewTokens(index, (5,), (-1.0,)))
        outcomes.on_event(Finished(index, scored(index)))
    assert outcomes.get() == outcomes.results() == [scored(0), scored(1), scored(2)]


def test_submissions_of_their_own_have_a_place_among_all_tasks() -> None:
    outcomes = Outcomes(3)
    outcomes.on_event(Finished(0, scored(2)), first=2)
    outcomes.on_event(Finished(1, scored(1)))
    outcomes.on_event(Finished(0, scored(0)))
    assert outcomes.results() == [scored(0), scored(1), scored(2)]


def test_the_end_is_reported_with_the_last_outcome_and_not_before() -> None:
    ends: list[int] = []
    outcomes = Outcomes(2, lambda: ends.append(len(outcomes.results())))
    outcomes.on_event(Finished(1, scored(1)))
    outcomes.on_event(NewTokens(0, (5,), (-1.0,)))
    assert ends == []
    outcomes.on_event(Finished(0, scored(0)))
    assert ends == [2]


def test_the_end_is_reported_once_however_many_threads_bring_outcomes() -> None:
    threads, each = 8, 50
    for _ in range(20):
        ends: list[None] = []
        outcomes = Outcomes(threads * each, lambda ends=ends: ends.append(None))  # type: ignore[misc]
        barrier = threading.Barrier(threads)

        def bring(first: int, outcomes: Outcomes = outcomes, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            for index in range(each):
                outcomes.on_event(Finished(index, scored(first + index)), first)

        running = [threading.Thread(target=bring, args=(number * each,)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        assert len(ends) == 1
        assert outcomes.results() == [scored(place) for place in range(threads * each)]


def test_failures_are_outcomes_and_the_first_is_raised_for_results() -> None:
    first, second = DeadlineError("late"), InvalidFieldError("wrong")
    outcomes = Outcomes(3)
    for index, answer in ((2, second), (0, scored(0)), (1, first)):
        outcomes.on_event(Finished(index, answer))
    assert outcomes.get() == [scored(0), first, second]
    with pytest.raises(DeadlineError):
        outcomes.results()


def test_a_task_without_an_outcome_is_not_ready() -> None:
    outcomes = Outcomes(2)
    outcomes.on_event(Finished(0, scored(0)))
    assert outcomes.get()[0] == scored(0)
    with pytest.raises(NotReadyError):
        outcomes.results()


def test_a_full_queue_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "RETRY_SECONDS", 0.001)
    engine = FakeEngine(make_bundle(tmp_path), max_queue_requests=1)
    engine.pause_after = 0
    engine.start()
    done = threading.Event()
    outcomes = Outcomes(2, done.set)
    try:
        engine.submit([TASK], outcomes.on_event)
        late = threading.Thread(
            target=lambda: submit_when_room(
                engine, [TASK], lambda event: outcomes.on_event(event, 1), None, threading.Event()
            )
        )
        late.start()
        while engine.submissions < 3:  # refused at least once
            late.join(0.001)
        engine.resume()
        assert done.wait(PATIENCE)
        late.join()
    finally:
        engine.close()
    assert len(outcomes.results()) == 2


def test_a_full_queue_is_not_waited_for_once_closed(tmp_path: Path) -> None:
    engine = FakeEngine(make_bundle(tmp_path), max_queue_requests=0)
    engine._most_requests = 1
    closed = threading.Event()
    closed.set()
    with pytest.raises(QueueFullError):
        submit_when_room(engine, [TASK], Outcomes(1).on_event, None, closed)
    assert engine.submissions == 1
