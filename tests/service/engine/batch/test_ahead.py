"""Sources are encoded ahead, while their jobs wait for rows: no answer changes, no job is lost or computed twice."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest

from attendant.export.bundle import Bundle
from attendant.service.engine.batch import lane
from attendant.service.engine.batch.runner import Runner
from attendant.service.engine.observer import EngineObserver
from attendant.service.engine.queue.scheduler import Scheduler
from attendant.service.errors import CancelledError, ServiceError
from tests.kernels.needed import needs_kernels
from tests.service.engine.queue.test_scheduler import jobs, occupy, scheduler
from tests.support.engines import SOURCES, Callback, finish_all, generate, make_bundle, make_engine, without_timing
from tests.support.small_models import make_model

TASKS = [
    generate([4 + (i + j) % 9 for j in range(1 + i % 13)], beam_size=beam, max_length=3 + i % 7)
    for i in range(24)
    for beam in (1, 2)
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(make_model(seed=3), tmp_path_factory.mktemp("bundle") / "small")


class Encodings(EngineObserver):
    """Counts the source tokens of each encoding."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.joined = 0

    def encoded(self, queue_seconds: list[float], source_tokens: int, seconds: float) -> None:  # noqa: ARG002
        self.joined += len(queue_seconds)
        self.tokens.append(source_tokens)


@needs_kernels
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_answers_are_the_same_to_the_bit(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, precision: str, lanes: int
) -> None:
    counts, answers = {}, {}
    for most in (0, 40, 1000):
        monkeypatch.setattr(lane, "MAX_ENCODED_TOKENS", most)
        seen = Encodings()
        engine = make_engine(bundle, seen, precision=precision, max_rows=4, lanes=lanes, threads=lanes)
        answers[most] = [without_timing(result) for result in engine.run(TASKS)]
        counts[most] = sum(tokens > 0 for tokens in seen.tokens)
        assert seen.joined == len(TASKS)
        assert sum(seen.tokens) == sum(len(task.source) + 1 for task in TASKS)  # each source once
    assert answers[0] == answers[40] == answers[1000]
    assert counts[0] > counts[40] > counts[1000]


@needs_kernels
def test_a_job_that_is_cancelled_while_its_source_is_encoded_has_its_outcome_and_the_others_theirs(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, real = make_engine(bundle, max_rows=1), Runner.encode_ahead
    callbacks = [Callback() for _ in SOURCES]

    def encode(self: Runner, sources: Any) -> Any:
        submissions[2].cancel()
        return real(self, sources)

    monkeypatch.setattr(Runner, "encode_ahead", encode)
    submissions = [
        engine.submit([generate(source)], callback) for source, callback in zip(SOURCES, callbacks, strict=True)
    ]
    finish_all(engine)
    outcomes = [callback.wait()[0] for callback in callbacks]
    assert isinstance(outcomes[2], CancelledError)
    wanted = make_engine(bundle).run([generate(SOURCES[i]) for i in (0, 1, 3)])
    assert [without_timing(outcomes[i]) for i in (0, 1, 3)] == [without_timing(result) for result in wanted]


@needs_kernels
def test_an_encoder_that_fails_costs_those_in_the_lane_and_not_those_that_wait(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, real, failed = make_engine(bundle, max_rows=1), Runner.encode_ahead, []

    def encode(self: Runner, sources: Any) -> Any:
        if not failed:
            failed.append(True)
            raise RuntimeError("boom")
        return real(self, sources)

    monkeypatch.setattr(Runner, "encode_ahead", encode)
    callback = Callback(len(SOURCES))
    engine.submit([generate(source) for source in SOURCES], callback)
    engine.start()
    outcomes = callback.wait()
    engine.close()
    assert isinstance(outcomes[0], ServiceError)
    wanted = make_engine(bundle).run([generate(source) for source in SOURCES[1:]])
    assert [without_timing(outcomes[i]) for i in (1, 2, 3)] == [without_timing(result) for result in wanted]


def test_where_rows_are_on_a_device_no_source_is_encoded_ahead(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = copy.deepcopy(bundle)
    for variant in plain.variants.values():
        del variant.graphs["kernel_step"]
    monkeypatch.delattr(Runner, "encode_ahead")
    assert len(make_engine(plain, max_rows=2).run(TASKS)) == len(TASKS)


def begin(held: Scheduler, count: int) -> list[Any]:
    """Encode the next `count` sources of the queue, which have 4 tokens each."""
    return held.begin_encoding(0, 4 * count)


def test_the_next_in_the_queue_are_encoded_each_once() -> None:
    held, waiting = scheduler(lanes=1), jobs(6)
    held.submit(waiting)
    assert begin(held, 2) == waiting[:2]
    assert begin(held, 3) == waiting[2:5]
    assert begin(held, 3) == waiting[5:]
    assert begin(held, 3) == []
    held.end_encoding(waiting)
    assert begin(held, 6) == waiting  # nothing came of it


def test_what_another_lane_has_rows_for_is_left_to_it() -> None:
    held, waiting = scheduler(max_rows=4), jobs(6)
    held.submit(waiting)
    assert held.admit(0, 999) == waiting[:3]
    assert begin(held, 3) == []  # the other lane is about to take them
    occupy(held, 1, 3)
    assert begin(held, 3) == waiting[4:]


def test_a_source_that_does_not_fit_ends_the_choice() -> None:
    held, waiting = scheduler(lanes=1), [*jobs(1), *jobs(1, length=30), *jobs(1)]
    held.submit(waiting)
    assert held.begin_encoding(0, 20) == waiting[:1]
    assert held.begin_encoding(0, 0) == []


def test_a_lane_passes_over_those_that_another_encodes_and_takes_them_first_afterwards() -> None:
    held, waiting = scheduler(lanes=1, max_rows=2), jobs(4)
    held.submit(waiting)
    encoding = begin(held, 2)
    assert held.admit(0, 999) == waiting[2:]
    held.release(0, waiting[2:])
    held.end_encoding(encoding)
    assert held.admit(0, 999) == waiting[:2]


def test_a_lane_without_work_sleeps_until_the_encoding_has_ended() -> None:
    held, waiting, awake = scheduler(lanes=1), jobs(2), threading.Event()
    held.submit(waiting)
    encoding = begin(held, 2)

    def wait() -> None:
        held.wait_for_work(0)
        awake.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not awake.wait(0.05)
    held.end_encoding(encoding)
    assert awake.wait(30)
    thread.join()


def test_jobs_in_the_queue_can_be_drained_while_they_are_encoded() -> None:
    held, waiting = scheduler(lanes=1), jobs(3)
    held.submit(waiting)
    encoding = begin(held, 2)
    assert held.drain() == waiting
    held.end_encoding(encoding)
    assert held.count_waiting() == 0
