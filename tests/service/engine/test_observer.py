"""What a real engine tells its observer: every count is that of what was asked and answered."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from attendant.export.bundle import Bundle
from attendant.service.engine.engine import Engine
from attendant.service.engine.observer import EngineObserver
from attendant.service.engine.tasks import Generate, Generated, NewTokens, NextToken, Options, Score, Task
from attendant.service.errors import QueueFullError
from attendant.service.http.routes import ENDPOINTS, MODEL_ENDPOINTS
from attendant.service.watch.metrics import Metrics
from tests.support.engines import LONG, SOURCES, Callback, finish_all, generate, make_bundle, make_engine
from tests.support.small_models import make_model


@dataclass
class Recorder(EngineObserver):
    refused: int = 0
    encodings: list[tuple[list[float], int, float]] = field(default_factory=list)
    steps: list[tuple[int, float]] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)
    generations: list[tuple[int, int, float]] = field(default_factory=list)
    cancellations: list[int] = field(default_factory=list)
    expirations: int = 0

    def queue_full(self) -> None:
        self.refused += 1

    def encoded(self, queue_seconds: list[float], source_tokens: int, seconds: float) -> None:
        self.encodings.append((queue_seconds, source_tokens, seconds))

    def stepped(self, rows: int, seconds: float) -> None:
        self.steps.append((rows, seconds))

    def first_token(self, seconds: float) -> None:
        self.first_tokens.append(seconds)

    def generated(self, target_tokens: int, pruned_tokens: int, seconds_per_token: float) -> None:
        self.generations.append((target_tokens, pruned_tokens, seconds_per_token))

    def cancelled(self, wasted_tokens: int) -> None:
        self.cancellations.append(wasted_tokens)

    def expired(self) -> None:
        self.expirations += 1


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(make_model(seed=3), tmp_path_factory.mktemp("bundle") / "small", ("fp32",))


@pytest.fixture(scope="module")
def shared(bundle: Bundle) -> Engine:
    return make_engine(bundle, Recorder(), max_queue_requests=40)


@pytest.fixture
def recorder(shared: Engine) -> Recorder:
    """An empty one, for each test."""
    recorder = shared._observer
    assert isinstance(recorder, Recorder)
    recorder.__init__()  # type: ignore[misc]
    return recorder


def test_the_certificate_is_not_observed(bundle: Bundle) -> None:
    recorder = Recorder()
    make_engine(bundle, recorder)
    assert recorder == Recorder()


def test_a_greedy_generation_is_counted_token_by_token(shared: Engine, recorder: Recorder) -> None:
    [found] = shared.run([generate([4, 5, 6])])
    assert isinstance(found, Generated)
    length = len(found.hypotheses[0].logprobs)
    assert [generation[:2] for generation in recorder.generations] == [(length, 0)]
    assert [rows for rows, _ in recorder.steps] == [1] * length
    [(queue_seconds, source_tokens, seconds)] = recorder.encodings
    assert (len(queue_seconds), source_tokens) == (1, 4)
    assert queue_seconds[0] >= 0
    assert seconds > 0
    assert recorder.generations[0][2] <= found.timing.decode / length


def test_sources_that_are_encoded_together_are_told_of_together(shared: Engine, recorder: Recorder) -> None:
    shared.run([generate(source, max_length=2) for source in SOURCES])
    [(queue_seconds, source_tokens, _)] = recorder.encodings
    assert (len(queue_seconds), source_tokens) == (len(SOURCES), sum(len(source) + 1 for source in SOURCES))


def test_a_beams_tokens_are_answered_or_pruned(shared: Engine, recorder: Recorder) -> None:
    [found] = shared.run([generate(SOURCES[2], beam_size=4, num_hypotheses=2)])
    assert isinstance(found, Generated)
    [(answered, pruned, _)] = recorder.generations
    assert answered == sum(len(hypothesis.logprobs) for hypothesis in found.hypotheses)
    assert answered + pruned == sum(rows for rows, _ in recorder.steps)
    assert pruned > 0


def test_start_tokens_are_neither_answered_nor_wasted(shared: Engine, recorder: Recorder) -> None:
    task = Generate(source=(4, 5, 6), start=(6, 9), options=Options(max_length=8))
    [found] = shared.run([task])
    assert isinstance(found, Generated)
    assert [generation[:2] for generation in recorder.generations] == [(len(found.hypotheses[0].logprobs), 0)]
    submission = shared.submit([task], Callback())
    for _ in range(3):
        shared.iteration()
    submission.cancel()
    finish_all(shared)
    assert recorder.cancellations == [1]


def test_scores_and_distributions_are_no_generations_and_have_no_first_token(
    shared: Engine, recorder: Recorder
) -> None:
    shared.run([Score(source=(4,), target=(5, 6)), NextToken(source=(4,))])
    assert (recorder.generations, recorder.first_tokens) == ([], [])
    assert [rows for rows, _ in recorder.steps] == [2, 1, 1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prefix", [(), (4, 5)], ids=len)
def test_the_first_token_is_told_of_when_it_is_there_and_not_at_the_end(
    shared: Engine, recorder: Recorder, stream: bool, prefix: tuple[int, ...]
) -> None:
    callback = Callback()
    shared.submit([Generate(source=(4,), prefix=prefix, options=LONG, stream=stream)], callback)
    for _ in range(len(prefix) + 1):
        shared.iteration()
    assert len(recorder.first_tokens) == 1
    until_then = recorder.first_tokens[0]
    finish_all(shared)
    assert recorder.first_tokens == [until_then]
    timing = callback.wait()[0].timing
    assert until_then < timing.queue + timing.encode + timing.decode


def test_an_unstreamed_first_token_is_one_after_the_prefix(shared: Engine, recorder: Recorder) -> None:
    shared.submit([Generate(source=(4,), prefix=(4, 5), options=LONG)], Callback())
    counts = []
    for _ in range(4):
        shared.iteration()
        counts.append(len(recorder.first_tokens))
    assert counts == [0, 0, 1, 1]
    finish_all(shared)


def test_a_streamed_beams_first_token_is_the_first_that_is_emitted(shared: Engine, recorder: Recorder) -> None:
    callback = Callback()
    shared.submit([Generate(source=(4, 5), options=Options(beam_size=4, max_length=20), stream=True)], callback)
    while shared.count_running() or shared.count_waiting():
        shared.iteration()
        emitted = any(isinstance(event, NewTokens) for event in callback.events)
        assert emitted or not recorder.first_tokens
    assert len(recorder.first_tokens) == 1


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_what_a_cancelled_request_had_decoded_is_wasted(shared: Engine, recorder: Recorder, steps: int) -> None:
    submission = shared.submit([Generate(source=(4,), options=LONG)], Callback())
    for _ in range(steps):
        shared.iteration()
    submission.cancel()
    finish_all(shared)
    assert recorder.cancellations == [steps]
    assert (recorder.generations, recorder.expirations) == ([], 0)


def test_an_expired_request_is_told_of_once_waiting_or_running(shared: Engine, recorder: Recorder) -> None:
    shared.submit([Generate(source=(4,), options=LONG)], Callback(), deadline=time.monotonic() - 1)
    shared.iteration()
    assert (recorder.expirations, recorder.generations, recorder.encodings) == (1, [], [])
    shared.submit([Generate(source=(4,), options=LONG)], Callback(), deadline=time.monotonic() + 3600)
    for _ in range(3):
        shared.iteration()
    for job in shared._lanes[0]._jobs:
        job.deadline = time.monotonic()
    finish_all(shared)
    assert recorder.expirations == 2
    assert [generation[:2] for generation in recorder.generations] == [(3, 0)]
    assert recorder.cancellations == []


def test_a_refused_submission_is_told_of_once(shared: Engine, recorder: Recorder) -> None:
    waiting = shared.submit([generate([4])] * 40, Callback(40))
    with pytest.raises(QueueFullError):
        shared.submit([generate([4])] * 20, Callback(20))
    waiting.cancel()
    assert recorder.refused == 1
    assert recorder.cancellations == [0] * 40


def test_a_started_engine_with_two_lanes_tells_of_all_that_it_did(bundle: Bundle) -> None:
    recorder = Recorder()
    engine = make_engine(bundle, recorder, threads=2, lanes=2)
    engine.start()
    tasks: list[Task] = [generate(SOURCES[i % 4], beam_size=1 + i % 3, max_length=12) for i in range(40)]
    callback = Callback(len(tasks))
    engine.submit(tasks, callback)
    outcomes: dict[int, Any] = callback.wait()
    engine.close()
    lengths = [len(hypothesis.logprobs) for found in outcomes.values() for hypothesis in found.hypotheses]
    assert len(recorder.generations) == len(recorder.first_tokens) == len(tasks)
    assert sum(answered for answered, _, _ in recorder.generations) == sum(lengths)
    decoded = sum(answered + pruned for answered, pruned, _ in recorder.generations)
    assert decoded == sum(rows for rows, _ in recorder.steps)
    assert sum(tokens for _, tokens, _ in recorder.encodings) == sum(len(task.source) + 1 for task in tasks)
    assert sum(len(waits) for waits, _, _ in recorder.encodings) == len(tasks)


def test_the_services_metrics_are_what_a_real_engine_did(bundle: Bundle) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, ENDPOINTS, MODEL_ENDPOINTS).model("small")
    engine = make_engine(bundle, metrics, max_queue_requests=8)
    metrics.read_levels_from(lambda: [engine], lambda: "loaded")

    def value(name: str, **labels: str) -> float:
        found = registry.get_sample_value(f"attendant_{name}", {"model": "small", **labels})
        assert found is not None
        return found

    results = engine.run([generate(SOURCES[0]), generate(SOURCES[1], beam_size=3), Score(source=(4,), target=(5,))])
    lengths = [len(found.hypotheses[0].logprobs) for found in results if isinstance(found, Generated)]
    assert value("target_tokens_total") == sum(lengths)
    assert value("source_tokens_total") == len(SOURCES[0]) + 1 + len(SOURCES[1]) + 1 + 2
    assert value("wasted_tokens_total", reason="pruned") == value("batch_rows_sum") - sum(lengths) - 2  # the score's
    assert value("first_token_seconds_count") == value("inter_token_seconds_count") == 2
    assert value("queue_seconds_count") == 3

    waiting = engine.submit([Generate(source=(4,), options=LONG)] * 8, Callback(8))
    with pytest.raises(QueueFullError):
        engine.submit([generate([4])] * 2, Callback(2))
    assert (value("requests_waiting"), value("requests_running")) == (8, 0)
    engine.iteration()
    assert (value("requests_waiting"), value("requests_running")) == (0, 8)
    waiting.cancel()
    engine.submit([generate([4])], Callback(), deadline=time.monotonic() - 1)
    finish_all(engine)
    assert value("wasted_tokens_total", reason="cancelled") == 8
    assert (value("queue_rejections_total"), value("deadline_hits_total")) == (1, 1)
    assert (value("requests_waiting"), value("requests_running")) == (0, 0)
