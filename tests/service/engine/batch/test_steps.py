"""Several steps in one call of compiled code: the bits of single steps, and no step too many."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

from attendant import kernels
from attendant.export.bundle import Bundle
from attendant.service.engine.batch.rows import StepLimits
from attendant.service.engine.batch.runner import Runner
from attendant.service.engine.engine import Engine
from attendant.service.engine.observer import EngineObserver
from attendant.service.engine.tasks import (
    AlignmentChoice,
    AttentionChoice,
    Explain,
    Generate,
    Generated,
    Options,
    Score,
    Task,
)
from attendant.service.errors import CancelledError, ServiceError
from tests.support.engines import LONG, SOURCES, Callback, generate, make_bundle, make_engine, without_timing
from tests.support.small_models import make_model

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="the kernels are not compiled")


class Steps(EngineObserver):
    """The rows of each step, and how many first tokens were reported."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.first_tokens = 0

    def stepped(self, rows: int, seconds: float) -> None:
        assert seconds >= 0
        self.rows.append(rows)

    def first_token(self, seconds: float) -> None:
        assert seconds >= 0
        self.first_tokens += 1


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(make_model(seed=3), tmp_path_factory.mktemp("bundle") / "small")


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture
def engine(bundle: Bundle, steps: Steps) -> Iterator[Engine]:
    made = make_engine(bundle, steps, lanes=1)
    yield made
    made.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call may last as long as it likes, so that how many steps it takes does not depend on this machine."""
    monkeypatch.setattr("attendant.service.engine.batch.compiled.MAX_SECONDS", 60.0)


def answers(engine: Engine, tasks: list[Task], most: int) -> tuple[list[Any], int]:
    """The answers of tasks that are decoded together, and in how many iterations."""
    callback, iterations = Callback(len(tasks)), 0
    engine.submit(tasks, callback)
    while engine.count_running() or engine.count_waiting():
        engine._lanes[0].iteration(most_steps=most)
        iterations += 1
    found = callback.wait()
    return [without_timing(found[i]) for i in range(len(tasks))], iterations


BEAMS = [generate(source, beam_size=beam, num_hypotheses=beam) for source in SOURCES for beam in (1, 2, 5)]
LIMITS = [
    Generate(source=(4, 5), options=Options(max_length=40, min_length=30)),
    Generate(source=(6,), options=Options(beam_size=3, max_length=17, forced_end=True)),
    Generate(source=(7, 8, 9), options=Options(beam_size=2, max_length=64, min_length=60, early_stopping="never")),
    Generate(source=(5,), options=Options(max_length=1)),
]
RARE: list[Task] = [
    generate([4, 5, 6], temperature=1.0, seed=4),
    Generate(source=(9, 8), options=Options(max_length=20), stream=True),
    Score(source=(4, 5), target=(6, 7, 8)),
]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("tasks", [BEAMS, LIMITS, [*BEAMS[:6], *RARE]], ids=["beams", "limits", "rare"])
def test_many_steps_in_a_call_give_the_bits_of_single_steps(
    bundle: Bundle, precision: str, tasks: list[Task], patient: None
) -> None:
    together, alone = Steps(), Steps()
    one = make_engine(bundle, alone, lanes=1, precision=precision)
    several = make_engine(bundle, together, lanes=1, precision=precision)
    expected, single = answers(one, tasks, 1)
    found, calls = answers(several, tasks, 64)
    assert found == expected
    assert together.rows == alone.rows
    assert single == len(alone.rows)
    assert calls < single or tasks[-len(RARE) :] == RARE  # which Python decides at each step
    generating = sum(isinstance(task, Generate) for task in tasks)
    assert together.first_tokens == alone.first_tokens == generating


def test_one_call_decodes_a_whole_answer(engine: Engine, steps: Steps, patient: None) -> None:
    (found,), iterations = answers(engine, [generate([4, 5, 6], max_length=12, min_length=12)], 64)
    assert [len(hypothesis.ids) for hypothesis in found] == [12]
    assert (iterations, steps.rows, steps.first_tokens) == (1, [1] * 12, 1)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_search_that_is_explained_afterwards_ends_in_compiled_code_too(engine: Engine, beam_size: int) -> None:
    search = Generate(source=(4, 5, 6), options=Options(max_length=9, beam_size=beam_size))
    choice, aligned = AttentionChoice(kinds=()), AlignmentChoice(layer=0, heads=(0,))
    task = Explain(search=search, attention=choice, alignment=aligned, alignable=(0,), max_values=10**6)
    alone, explained = engine.run([search]), engine.run([task])
    assert without_timing(explained[0].found) == without_timing(alone[0])


def test_rows_that_outgrow_the_cache_go_on_after_it_has_grown(engine: Engine, steps: Steps, patient: None) -> None:
    _, iterations = answers(engine, [Generate(source=(4, 5), options=LONG)], 64)
    assert len(steps.rows) == 64
    assert 1 < iterations <= 4


def test_what_has_changed_is_looked_at_after_the_step(engine: Engine, steps: Steps, patient: None) -> None:
    lane, scheduler = engine._lanes[0], engine._scheduler
    engine.submit([Generate(source=(4, 5), options=LONG)], Callback())
    lane.iteration(most_steps=1)
    for change in (lambda: engine.submit([generate([9])], Callback()), lambda: scheduler.cancel([])):
        before, seen = len(steps.rows), scheduler.changes.value
        change()
        lane._step(seen, 64)
        assert len(steps.rows) == before + 1


def test_while_others_wait_every_step_looks_for_room(engine: Engine, steps: Steps, patient: None) -> None:
    engine.submit([Generate(source=(4, 5), options=LONG)], Callback())
    lane = engine._lanes[0]
    lane.iteration(most_steps=1)
    engine.submit([generate([9])], Callback())
    lane._step(engine._scheduler.changes.value, 64)
    assert len(steps.rows) == 2


def test_a_cancelled_request_leaves_after_the_call(engine: Engine, steps: Steps) -> None:
    callback = Callback()
    submitted = engine.submit([Generate(source=(4, 5), options=LONG)], callback)
    lane = engine._lanes[0]
    lane.iteration(most_steps=3)
    submitted.cancel()
    lane.iteration()
    assert isinstance(callback.wait()[0], CancelledError)
    assert len(steps.rows) == 3


def test_an_error_in_a_call_fails_its_requests_and_no_later_ones(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbound = (ctypes.c_void_p * 100)()
    callback, later = Callback(), Callback()
    with monkeypatch.context() as patched:
        patched.setattr(Runner, "prepare", lambda *_: (unbound, 1))
        engine.submit([generate([4]), generate([5], beam_size=3)], callback)
        lane = engine._lanes[0]
        with pytest.raises(RuntimeError, match="refused a call"):
            lane.iteration()
        lane.fail_all(ServiceError("failed"))
    assert {type(outcome) for outcome in callback.wait().values()} == {ServiceError}
    engine.submit([generate([4])], later)
    while engine.count_running() or engine.count_waiting():
        lane.iteration()
    assert isinstance(later.wait()[0], Generated)


def test_a_graph_that_fails_is_an_error_with_what_onnxruntime_says(engine: Engine) -> None:
    lane = engine._lanes[0]
    engine.submit([generate([4])], Callback())
    lane.iteration(most_steps=1)
    lane._rows._runner.cache.source_rows[0] = 10**6  # a row of the cache that is not there
    with pytest.raises(RuntimeError, match="source_row"):
        lane._rows.decode(StepLimits(64, ctypes.c_int64(0), 0))
    lane.fail_all(ServiceError("failed"))
