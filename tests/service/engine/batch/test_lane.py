"""Lanes: what fails fails alone, what is late or left leaves, and everything is counted once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from attendant import kernels
from attendant.export.bundle import Bundle
from attendant.service.engine.batch.compiled import CompiledRows
from attendant.service.engine.batch.job import Job
from attendant.service.engine.batch.rows import StepCandidates
from attendant.service.engine.batch.runner import Runner
from attendant.service.engine.engine import Engine
from attendant.service.engine.search.beam import GenerateSearch
from attendant.service.engine.search.search import MAX_GRAPH_TOP_K
from attendant.service.engine.tasks import Finished, Generate, Generated, NewTokens, NextToken, Options, Score, Task
from attendant.service.errors import CancelledError, DeadlineError, NoNumbersError
from tests.support.engines import (
    LONG,
    SOURCES,
    Callback,
    finish_all,
    generate,
    make_bundle,
    make_engine,
    replace_step,
    without_timing,
)
from tests.support.small_models import make_model


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(make_model(seed=3), tmp_path_factory.mktemp("bundle") / "small", ("fp32",))


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> Engine:
    return make_engine(bundle)


@contextmanager
def held_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The first step waits until this ends; the event is set when it has begun."""
    begun, released, real = threading.Event(), threading.Event(), Runner.run

    def step(self: Runner, *arguments: Any) -> Any:
        begun.set()
        assert released.wait(30)
        return real(self, *arguments)

    with monkeypatch.context() as patched:
        replace_step(patched, step)
        try:
            yield begun
        finally:
            released.set()


def test_a_waiting_requests_deadline_is_kept_while_the_lanes_are_in_a_step(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(bundle, max_rows=1)
    with held_steps(monkeypatch) as begun:
        engine.start()
        engine.submit([Generate(source=(4,), options=LONG)], Callback())
        assert begun.wait(30)
        patient, late = Callback(), Callback(2)
        engine.submit([generate([4])], patient, deadline=time.monotonic() + 3600)
        engine.submit([generate([5]), generate([6])], late, deadline=time.monotonic() + 0.02)
        outcomes = late.wait()
        assert [type(outcomes[index]) for index in (0, 1)] == [DeadlineError, DeadlineError]
        assert not patient.events
        assert (engine.count_waiting(), engine.count_running()) == (1, 1)
    engine.close()


def test_cancelled_requests_leave_the_queue_while_the_lanes_are_in_a_step(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(bundle, max_rows=1, max_queue_requests=3)
    with held_steps(monkeypatch) as begun:
        engine.start()
        engine.submit([Generate(source=(4,), options=LONG)], Callback())
        assert begun.wait(30)
        callbacks = [Callback() for _ in range(3)]
        submissions = [engine.submit([generate([5])], callback) for callback in callbacks]
        submissions[1].cancel()
        assert isinstance(callbacks[1].wait()[0], CancelledError)
        engine.submit([generate([6])], Callback())
        assert engine.count_waiting() == 3
    engine.close()


@pytest.mark.parametrize("method", ["advance", "choose", "wanted", "last_tokens", "result", "agreed_length"])
@pytest.mark.parametrize("when", [0, 2])
def test_a_search_that_raises_fails_its_own_request_and_no_other(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, method: str, when: int
) -> None:
    others = [generate(source, beam_size=beam, max_length=12) for source in SOURCES for beam in (1, 3)]
    options = Options(beam_size=2, max_length=9, min_length=9)
    alternatives = int(method in ("advance", "choose"))  # with them its candidates are not ranked with others'
    broken = Generate(source=(7, 7), options=options, stream=True, top_logprobs=alternatives)
    wanted = [without_timing(result) for result in engine.run(others)]
    real = getattr(GenerateSearch, method)

    def fail(self: GenerateSearch, *arguments: Any) -> Any:
        if self.options == broken.options and (self.done or self.position >= when):
            raise RuntimeError("boom")
        return real(self, *arguments)

    callback = Callback(len(others) + 1)
    with monkeypatch.context() as patched:
        patched.setattr(GenerateSearch, method, fail)
        engine.submit([*others[:4], broken, *others[4:]], callback)
        finish_all(engine)
    outcomes = callback.wait()
    assert type(outcomes.pop(4)).__name__ == "ServiceError"
    assert [without_timing(outcomes[index]) for index in sorted(outcomes)] == wanted
    assert [without_timing(result) for result in engine.run(others)] == wanted


def test_a_callback_that_raises_disturbs_no_other_request(engine: Engine) -> None:
    def fail(_: NewTokens | Finished) -> None:
        raise RuntimeError("boom")

    fine, [wanted] = Callback(), engine.run([generate([4, 5], beam_size=3)])
    engine.submit([Generate(source=(6,), options=LONG, stream=True), generate([7])], fail)
    engine.submit([generate([4, 5], beam_size=3)], fine)
    finish_all(engine)
    assert without_timing(fine.wait()[0]) == without_timing(wanted)


def test_each_input_of_a_batch_has_its_own_outcome_when_the_deadline_comes(bundle: Bundle) -> None:
    """With one row: the first is done, the second is being decoded, the third has not begun."""
    engine, callback = make_engine(bundle, max_rows=1), Callback(3)
    [wanted] = engine.run([generate([4], max_length=3)])
    engine.submit(
        [generate([4], max_length=3), Generate(source=(5,), options=LONG), generate([6])],
        callback,
        deadline=time.monotonic() + 3600,
    )
    while not callback.events:
        engine.iteration()
    for _ in range(3):  # of the second
        engine.iteration()
    for job in (*engine._lanes[0]._jobs, *engine._scheduler._waiting):
        job.deadline = time.monotonic()
    engine._scheduler._next_expiry = 0.0
    finish_all(engine)
    outcomes = callback.wait()
    assert without_timing(outcomes[0]) == without_timing(wanted)
    assert [hypothesis.finish_reason for hypothesis in outcomes[1].hypotheses] == ["deadline"]
    assert isinstance(outcomes[2], DeadlineError)


def test_after_many_clients_have_vanished_nothing_is_counted_as_running_or_waiting(bundle: Bundle) -> None:
    engine = make_engine(bundle, threads=2, lanes=2, max_rows=8)
    engine.start()
    rng = np.random.default_rng(0)
    callbacks = []
    for i in range(200):
        callback = Callback()
        task = Generate(source=(4,) * int(rng.integers(1, 9)), options=LONG, stream=bool(i % 2))
        submission = engine.submit([task], callback, deadline=time.monotonic() + float(rng.uniform(0.0, 0.2)))
        callbacks.append(callback)
        if rng.random() < 0.9:
            threading.Timer(float(rng.uniform(0.0, 0.05)), submission.cancel).start()
    for callback in callbacks:
        callback.wait()
    engine.close(grace=30)
    assert (engine.count_running(), engine.count_waiting()) == (0, 0)
    assert engine._scheduler._lanes.rows == [0, 0]
    assert engine._scheduler.count_waiting_tokens() == 0
    assert all(len(callback.wait()) == 1 for callback in callbacks)


@pytest.mark.parametrize("top_k", [31_000, 200])
def test_a_large_top_k_is_not_asked_of_the_graph(engine: Engine, monkeypatch: pytest.MonkeyPatch, top_k: int) -> None:
    asked, real = [], Runner.run

    def step(self: Runner, rows: int, position: int, count: int) -> Any:
        asked.append(count)
        return real(self, rows, position, count)

    replace_step(monkeypatch, step)
    sampled = generate([4, 5], temperature=1.0, top_k=top_k, seed=1)
    engine.run([sampled, *[generate(source) for source in SOURCES]])
    assert max(asked) == 3 < MAX_GRAPH_TOP_K  # of the greedy rows: one, beside padding and start
    monkeypatch.undo()
    whole = generate([4, 5], temperature=1.0, seed=1, top_k=11)
    assert without_timing(engine.run([sampled])[0]) == without_timing(engine.run([whole])[0])


@pytest.mark.parametrize(
    "task",
    [
        generate(SOURCES[0]),
        generate(SOURCES[0], beam_size=3),
        generate(SOURCES[0], temperature=1.0, seed=1),
        Score(source=tuple(SOURCES[0]), target=(4, 5)),
        NextToken(source=tuple(SOURCES[0])),
    ],
    ids=["greedy", "beam", "sampled", "score", "next token"],
)
def test_log_probabilities_that_are_no_numbers_are_an_error_and_no_answer(
    task: Task, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, callback = Runner.run, Callback()

    def spoilt(self: Runner, *arguments: Any) -> Any:
        outputs = real(self, *arguments)
        outputs.top_logprobs[:] = np.nan
        outputs.logprobs[:] = np.nan
        return outputs

    with monkeypatch.context() as patched:
        replace_step(patched, spoilt)
        engine.submit([task], callback)
        finish_all(engine)
    outcome = callback.wait()[0]
    assert isinstance(outcome, NoNumbersError), outcome


def test_a_step_that_fails_leaves_no_rows_behind(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    [wanted], broken = engine.run([generate([4, 5], beam_size=4)]), Callback(2)

    def fail(*_: Any) -> None:
        raise RuntimeError("boom")

    engine.submit([generate([4]), generate([5], beam_size=3)], broken)
    with monkeypatch.context() as patched:
        replace_step(patched, fail)
        with pytest.raises(RuntimeError, match="boom"):
            engine.iteration()
    for lane in engine._lanes:
        lane.fail_all(RuntimeError("boom"))
    assert {str(outcome) for outcome in broken.wait().values()} == {"boom"}
    assert engine.count_running() == 0
    [found] = engine.run([generate([4, 5], beam_size=4)])
    assert isinstance(found, Generated)
    assert without_timing(found) == without_timing(wanted)


@pytest.mark.skipif(kernels.library() is None, reason="the kernels are not compiled")
def test_an_error_of_the_compiled_search_fails_the_jobs_of_its_lane_and_no_later_one(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(bundle, lanes=1)
    [wanted], broken = engine.run([generate([4, 5], beam_size=4)]), Callback(2)
    choose = CompiledRows.choose

    def forget(rows: CompiledRows, candidates: StepCandidates) -> list[Job]:
        rows._code.attendant_batch_clear(rows._batch)  # it knows none of the jobs any more
        return choose(rows, candidates)

    with monkeypatch.context() as patched:
        patched.setattr(CompiledRows, "choose", forget)
        engine.start()
        engine.submit([generate([4], temperature=1.0), generate([5], beam_size=3)], broken)
        outcomes = broken.wait().values()
    assert {str(outcome) for outcome in outcomes} == {
        "the server failed while decoding; the request may be sent again."
    }
    assert "unknown job" in caplog.text
    later = Callback(1)
    engine.submit([generate([4, 5], beam_size=4)], later)
    [found] = later.wait().values()
    assert isinstance(found, Generated)
    assert without_timing(found) == without_timing(wanted)
    engine.close()
