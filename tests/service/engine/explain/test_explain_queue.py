"""Explanations that wait or are computed: deadlines and cancellations hold everywhere, and decoding never waits."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnxruntime as ort
import pytest

from attendant.export.bundle import Bundle
from attendant.model.text.tokenizer import BOS, EOS
from attendant.service.engine.engine import Engine, EngineSettings, ThreadBudget
from attendant.service.engine.explain import explainer, full_graph
from attendant.service.engine.explain.full_graph import FullGraph, GraphFiles
from attendant.service.engine.tasks import Explained, Generate, Generated, Options
from attendant.service.errors import CancelledError, DeadlineError
from tests.service.engine.explain.test_explainer import SOURCE, explain
from tests.support.engines import Callback, make_bundle, make_engine
from tests.support.serving import PATIENCE, wait_for
from tests.support.small_models import make_model


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    model = make_model(seed=5, encoder_layers=3, heads=4)
    return make_bundle(model, tmp_path_factory.mktemp("explained") / "small", ("fp32",))


@contextmanager
def held_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Runs of the graph wait until this ends; the event is set when one has begun."""
    running, may_go_on, run = threading.Event(), threading.Event(), FullGraph.run

    def held(self: FullGraph, *given: Any) -> Any:
        running.set()
        assert may_go_on.wait(PATIENCE)
        return run(self, *given)

    monkeypatch.setattr(FullGraph, "run", held)
    try:
        yield running
    finally:
        may_go_on.set()


@pytest.fixture
def started(bundle: Bundle) -> Iterator[Engine]:
    engine = make_engine(bundle)
    engine.start()
    yield engine
    engine.close()


def test_an_engine_that_was_closed_is_freed_at_once_with_the_graph_that_explained(bundle: Bundle) -> None:
    """Not by the garbage collector, which looks seldom."""
    engine = make_engine(bundle)
    engine.start()
    callback = Callback()
    engine.submit([explain()], callback)
    assert isinstance(callback.wait()[0], Explained)
    engine.close()
    parts = [weakref.ref(part) for part in (engine, engine._explainer, engine._explainer._graph, engine._resources)]
    gc.disable()
    try:
        del engine
        assert [part() for part in parts] == [None] * len(parts)
    finally:
        gc.enable()


def test_the_deadline_of_one_behind_another_is_kept(started: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with held_runs(monkeypatch) as running:
        first, late = Callback(), Callback()
        started.submit([explain()], first, time.monotonic() + 3600)
        assert running.wait(PATIENCE)
        started.submit([explain()], late, time.monotonic() + 0.05)
        assert isinstance(late.wait()[0], DeadlineError)
        assert not first.events
    assert isinstance(first.wait()[0], Explained)


def test_the_deadline_of_one_that_is_being_computed_is_kept_and_its_run_stops(
    started: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = []
    monkeypatch.setattr(FullGraph, "stop", lambda _: stopped.append(True))
    with held_runs(monkeypatch) as running:
        late = Callback()
        started.submit([explain()], late, time.monotonic() + 0.5)
        assert isinstance(late.wait()[0], DeadlineError)
        assert stopped == [True] * running.is_set()
    wait_for(lambda: not started.count_running())
    assert len(late.events) == 1


def test_a_run_that_is_stopped_raises(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = FullGraph(GraphFiles(bundle, "fp32"), 1)
    options = ort.RunOptions()
    monkeypatch.setattr(full_graph.ort, "RunOptions", lambda: options)
    graph.run((*SOURCE, EOS), (BOS,), 0)
    graph._run_options = options
    graph.stop()
    with pytest.raises(Exception, match="terminate"):
        graph.run((*SOURCE, EOS), (BOS,), 0)


def test_one_that_is_cancelled_behind_another_makes_room_at_once(
    started: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_runs(monkeypatch) as running:
        started.submit([explain()], Callback())
        assert running.wait(PATIENCE)
        left = Callback(explainer.MAX_PENDING - 1)
        submitted = started.submit([explain()] * (explainer.MAX_PENDING - 1), left)
        wait_for(lambda: started._explainer.count_pending() == explainer.MAX_PENDING)
        submitted.cancel()
        assert all(isinstance(answer, CancelledError) for answer in left.wait().values())
        last = Callback()
        started.submit([explain()], last)
    assert isinstance(last.wait()[0], Explained)


def test_of_several_models_none_waits_with_its_decoding_for_an_explanation(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lanes that compute on all threads too; and one explanation is computed at a time."""
    budget, settings = ThreadBudget(2), EngineSettings(threads=2, lanes=2, precision="fp32")
    engines = [Engine(bundle, settings, thread_budget=budget) for _ in range(2)]
    for each in engines:
        each.start()
    begun: list[object] = []
    run = FullGraph.run
    monkeypatch.setattr(FullGraph, "run", lambda self, *given: begun.append(self) or run(self, *given))
    with held_runs(monkeypatch) as running:
        explained = [Callback() for _ in engines]
        engines[0].submit([explain()], explained[0])
        assert running.wait(PATIENCE)
        engines[1].submit([explain()], explained[1])
        for each in engines:
            decoded = Callback()
            each.submit([Generate(source=SOURCE, options=Options(max_length=9))], decoded)
            assert isinstance(decoded.wait()[0], Generated)
        assert not explained[1].events
    assert all(isinstance(callback.wait()[0], Explained) for callback in explained)
    assert len(begun) == 2
    for each in engines:
        each.close()
