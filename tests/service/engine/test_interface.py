"""EngineInterface, held to by the real engine, by it behind SharedEngine, and by the fake one of the tests of HTTP."""

from __future__ import annotations

import dataclasses
import inspect
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attendant.export.bundle import Bundle
from attendant.service.engine.batch.runner import Runner
from attendant.service.engine.cache.shared import SharedEngine
from attendant.service.engine.engine import Engine
from attendant.service.engine.interface import CertificateResult, EngineDescription, EngineInterface
from attendant.service.engine.tasks import (
    Distribution,
    Generate,
    Generated,
    NewTokens,
    NextToken,
    Options,
    Score,
    Scored,
    Task,
)
from attendant.service.errors import CancelledError, DeadlineError, InvalidFieldError, NotReadyError, QueueFullError
from tests.support import fake_engine
from tests.support.engines import Callback, make_bundle, make_engine, replace_step
from tests.support.fake_engine import FakeEngine
from tests.support.serving import wait_for
from tests.support.small_models import make_model

MAX_REQUESTS = 6
EOS = 3  # in both models


class Kind:
    """One kind of engine: how it is made, and how its decoding is paused."""

    def make(self) -> Any:
        """An engine with a queue of MAX_REQUESTS, started."""
        raise NotImplementedError

    def pause(self, after: int) -> None:
        """Every task stops after so many tokens."""
        raise NotImplementedError

    def paused(self) -> bool:
        """Whether a task has come to the end of its tokens."""
        raise NotImplementedError

    def resume(self) -> None:
        raise NotImplementedError


class Fake(Kind):
    def __init__(self, directory: Path) -> None:
        self._bundle = fake_engine.make_bundle(directory)

    def make(self) -> FakeEngine:
        self._engine = FakeEngine(self._bundle, MAX_REQUESTS)
        self._engine.start()
        return self._engine

    def pause(self, after: int) -> None:
        self._engine.pause_after = after

    def paused(self) -> bool:
        after = self._engine.pause_after
        return after is not None and any(len(job.ids) >= after for job in self._engine._jobs)

    def resume(self) -> None:
        self._engine.resume()


class Real(Kind):
    def __init__(self, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
        self._bundle, self._gate, self._left = bundle, threading.Event(), 0
        self._gate.set()
        step = Runner.run

        def paused_step(runner: Runner, *arguments: Any) -> Any:
            if not self._gate.is_set():
                self._left -= 1
                assert self._left >= 0 or self._gate.wait(30)
            return step(runner, *arguments)

        replace_step(monkeypatch, paused_step)

    def make(self) -> Any:
        engine = make_engine(self._bundle, max_queue_requests=MAX_REQUESTS)
        engine.start()
        return engine

    def pause(self, after: int) -> None:
        self._left = after
        self._gate.clear()

    def paused(self) -> bool:
        return self._left < 0

    def resume(self) -> None:
        self._gate.set()


class Shared(Real):
    def make(self) -> SharedEngine:
        return SharedEngine(super().make(), cache_bytes=10**6)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(make_model(seed=3), tmp_path_factory.mktemp("bundle") / "small", ("fp32",))


@pytest.fixture(params=["real", "shared", "fake"])
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kind:
    if request.param == "fake":
        return Fake(tmp_path / "bundle")
    return {"real": Real, "shared": Shared}[request.param](request.getfixturevalue("bundle"), monkeypatch)


@pytest.fixture
def engine(kind: Kind) -> Iterator[Any]:
    engine = kind.make()
    yield engine
    kind.resume()
    engine.close()


def ask(engine: EngineInterface, *tasks: Task) -> list[Any]:
    callback = Callback(len(tasks))
    engine.submit(tasks, callback)
    outcomes = callback.wait()
    return [outcomes[index] for index in range(len(tasks))]


def generate(source: tuple[int, ...] = (4, 5, 6), **changes: Any) -> Generate:
    task = {name: changes.pop(name) for name in ("prefix", "stream", "top_logprobs") if name in changes}
    return Generate(source=source, options=Options(**{"max_length": 12} | changes), **task)


GENERATIONS = {
    "greedy": generate(),
    "prefix": generate(prefix=(5, 4)),
    "beam": generate(beam_size=4, num_hypotheses=2),
    "sampled": generate(temperature=1.0, num_hypotheses=3, seed=1),
    "short": generate(max_length=2),
}


@pytest.fixture(params=GENERATIONS)
def generation(request: pytest.FixtureRequest) -> Generate:
    return GENERATIONS[request.param]


@pytest.mark.parametrize("engine_type", [Engine, SharedEngine, FakeEngine])
@pytest.mark.parametrize(
    "method",
    ["submit", "count_waiting", "count_waiting_tokens", "count_running", "count_cached_bytes", "start", "close"],
)
def test_methods_take_what_the_interface_says(engine_type: type, method: str) -> None:
    expected, found = (inspect.signature(getattr(of, method)).parameters for of in (EngineInterface, engine_type))
    assert [(p.name, p.default) for p in found.values()] == [(p.name, p.default) for p in expected.values()]


def test_the_description_is_whole_and_never_changes(engine: Any) -> None:
    description = engine.description
    assert isinstance(description, EngineDescription)
    assert isinstance(description.certificate, CertificateResult)
    for name in ("threads", "lanes", "max_rows", "max_queue_tokens", "max_source_length", "max_target_length"):
        assert getattr(description, name) >= 1
    assert description.max_queue_requests == MAX_REQUESTS
    assert description.precision in description.variants
    assert {"pad", "unk", "bos", "eos"} <= set(description.special_ids)
    assert description.certificate.drift <= description.certificate.tolerance
    assert engine.description == description
    with pytest.raises(dataclasses.FrozenInstanceError):
        description.model = "another"


def test_the_vocabulary_is_that_of_the_tokenizers(engine: Any) -> None:
    [found] = ask(engine, NextToken(source=(4,)))
    assert len(found.logprobs) == engine.description.sizes.target_vocab >= engine.target_tokenizer.size


def test_each_task_gets_one_result_of_its_kind(engine: Any) -> None:
    tasks = [generate(), NextToken(source=(4,)), Score(source=(4,), target=(5,)), generate(source=(6,))]
    assert [type(result) for result in ask(engine, *tasks)] == [Generated, Distribution, Scored, Generated]
    assert (engine.count_running(), engine.count_waiting()) == (0, 0)


def test_a_hypothesis_has_a_log_probability_for_each_token_and_the_score_of_those(
    engine: Any, generation: Generate
) -> None:
    [found] = ask(engine, generation)
    assert len(found.hypotheses) == generation.options.num_hypotheses
    for hypothesis in found.hypotheses:
        assert hypothesis.ids[: len(generation.prefix)] == generation.prefix
        assert EOS not in hypothesis.ids
        assert len(hypothesis.logprobs) <= generation.options.max_length
        assert len(hypothesis.logprobs) - len(hypothesis.ids) == (hypothesis.finish_reason == "stop")
        assert hypothesis.score == pytest.approx(np.mean(hypothesis.logprobs), abs=1e-6)
        assert hypothesis.top_logprobs == ()


def test_what_is_scored_again_is_what_was_reported(engine: Any) -> None:
    [found] = ask(engine, generate())
    [hypothesis] = found.hypotheses
    [scored] = ask(engine, Score(source=(4, 5, 6), target=hypothesis.ids))
    assert len(scored.logprobs) == len(hypothesis.ids) + 1
    assert scored.logprobs[: len(hypothesis.logprobs)] == hypothesis.logprobs


def test_a_distribution_sums_to_one_and_has_the_prefix_scored(engine: Any) -> None:
    [found, scored] = ask(engine, NextToken(source=(4,), prefix=(5, 6)), Score(source=(4,), target=(5, 6)))
    assert np.exp(found.logprobs.astype(np.float64)).sum() == pytest.approx(1, abs=1e-4)
    assert found.prefix_logprobs == scored.logprobs[:2]
    assert float(found.logprobs[EOS]) == scored.logprobs[2]


@pytest.mark.parametrize("top_logprobs", [0, 3])
def test_streamed_tokens_are_those_of_the_first_hypothesis(
    engine: Any, generation: Generate, top_logprobs: int
) -> None:
    callback = Callback()
    engine.submit([dataclasses.replace(generation, stream=True, top_logprobs=top_logprobs)], callback)
    best = callback.wait()[0].hypotheses[0]
    *events, _ = callback.events
    assert all(isinstance(event, NewTokens) and event.ids for event in events)
    for name in ("ids", "logprobs", "top_logprobs"):
        parts = tuple(value for event in events for value in getattr(event, name))
        assert parts == getattr(best, name)[: len(best.ids)]


def test_alternatives_are_the_most_probable_tokens_at_every_position(engine: Any, generation: Generate) -> None:
    [found] = ask(engine, dataclasses.replace(generation, top_logprobs=3))
    for hypothesis in found.hypotheses:
        assert len(hypothesis.top_logprobs) == len(hypothesis.logprobs)
        for position, top in enumerate(hypothesis.top_logprobs):
            [at] = ask(engine, NextToken(source=generation.source, prefix=hypothesis.ids[:position]))
            order = np.argsort(-at.logprobs, kind="stable")[:3].tolist()
            assert top == tuple((token, float(at.logprobs[token])) for token in order)


def test_asking_for_alternatives_changes_nothing_else(engine: Any, generation: Generate) -> None:
    [plain, recorded] = (
        ask(engine, dataclasses.replace(generation, top_logprobs=count))[0].hypotheses for count in (0, 5)
    )
    assert tuple(dataclasses.replace(hypothesis, top_logprobs=()) for hypothesis in recorded) == plain


def test_what_is_cancelled_gets_that_outcome_and_leaves(kind: Kind, engine: Any) -> None:
    kind.pause(after=1)
    callback = Callback(3)
    submission = engine.submit([generate(), generate(source=(7,)), generate(source=(8, 4))], callback)
    assert engine.count_running() + engine.count_waiting() == 3
    submission.cancel()
    kind.resume()
    assert {type(outcome) for outcome in callback.wait().values()} == {CancelledError}
    submission.cancel()
    ask(engine, generate())
    assert len(callback.events) == 3
    assert (engine.count_running(), engine.count_waiting()) == (0, 0)


@pytest.mark.parametrize("task", [generate(), NextToken(source=(4,)), Score(source=(4,), target=(5,))], ids=str)
def test_a_deadline_that_has_passed_is_an_error(engine: Any, task: Task) -> None:
    callback = Callback()
    engine.submit([task], callback, deadline=time.monotonic() - 1)
    assert isinstance(callback.wait()[0], DeadlineError)


@pytest.mark.parametrize(("prefix", "after", "expected"), [((), 2, Generated), ((5, 4), 0, DeadlineError)])
def test_at_its_deadline_a_generation_answers_with_what_it_has_beyond_the_prefix(
    kind: Kind,
    engine: Any,
    prefix: tuple[int, ...],
    after: int,
    expected: type,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind.pause(after=after)
    callback, monotonic = Callback(), time.monotonic
    engine.submit([generate(prefix=prefix, min_length=10)], callback, deadline=monotonic() + 1000)
    wait_for(kind.paused)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 1001)
    kind.resume()
    outcome = callback.wait()[0]
    assert isinstance(outcome, expected)
    if isinstance(outcome, Generated):
        [hypothesis] = outcome.hypotheses
        assert hypothesis.finish_reason == "deadline"
        assert len(hypothesis.ids) == len(hypothesis.logprobs) >= 1


def test_a_full_queue_takes_none_of_a_submission_and_the_accepted_are_answered(kind: Kind, engine: Any) -> None:
    kind.pause(after=0)
    accepted: list[Callback] = []

    def fill() -> None:
        while len(accepted) < 20:
            number = len(accepted)
            tasks = [generate(source=(4 + number // 9, 4 + number % 9, 4 + place)) for place in range(4)]
            engine.submit(tasks, callback := Callback(4))
            accepted.append(callback)

    with pytest.raises(QueueFullError) as refused:
        fill()
    assert refused.value.retry_after >= 1
    kind.resume()
    assert accepted
    for callback in accepted:
        assert {type(outcome) for outcome in callback.wait().values()} == {Generated}


def test_what_could_never_fit_is_refused_for_good(engine: Any) -> None:
    with pytest.raises(InvalidFieldError) as refused:
        engine.submit([generate()] * (MAX_REQUESTS + 1), Callback())
    assert refused.value.field == "inputs"
    beam_size = engine.description.max_rows + 1
    with pytest.raises(InvalidFieldError) as refused:
        engine.submit([generate(beam_size=beam_size)], Callback())
    assert refused.value.field == "beam_size"


def test_closing_with_time_finishes_what_was_accepted_and_takes_nothing_more(engine: Any) -> None:
    callback = Callback(4)
    engine.submit([generate()] * 4, callback)
    engine.close(grace=30)
    assert {type(outcome) for outcome in callback.wait().values()} == {Generated}
    with pytest.raises(NotReadyError):
        engine.submit([generate()], Callback())


def test_closing_without_time_fails_what_is_left(kind: Kind, engine: Any) -> None:
    kind.pause(after=0)
    callback = Callback(4)
    engine.submit([generate(min_length=12)] * 4, callback)
    closing = threading.Thread(target=engine.close)
    closing.start()
    while True:  # until it accepts nothing more
        try:
            engine.submit([generate(min_length=12)], Callback()).cancel()
        except NotReadyError:
            break
    kind.resume()
    closing.join(30)
    assert not closing.is_alive()
    outcomes = [type(outcome) for outcome in callback.wait().values()]
    assert set(outcomes) <= {NotReadyError, Generated}
    assert NotReadyError in outcomes
    assert len(callback.events) == 4
