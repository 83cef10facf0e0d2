"""The thread budget: how the engines of several models share the processors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from attendant.export.bundle import Bundle
from attendant.service.engine import resources
from attendant.service.engine.batch.runner import Runner
from attendant.service.engine.engine import Engine, EngineSettings
from attendant.service.engine.queue.thread_budget import ThreadBudget
from tests.support.engines import SOURCES, Callback, generate, make_bundle, make_engine, replace_step, without_timing
from tests.support.serving import wait_for
from tests.support.small_models import make_model


class Watched(ThreadBudget):
    """ThreadBudget that know how many threads have one, and the most that ever had."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.busy = self.most = self.taken = 0
        self._count, self._of_thread = threading.Lock(), threading.local()

    def held(self) -> int:
        """Threads that the one which asks may compute with."""
        return getattr(self._of_thread, "threads", 0)

    @contextmanager
    def take(self, threads: int) -> Iterator[None]:
        with super().take(threads):
            self._add(min(threads, self.threads))
            self._of_thread.threads = threads
            try:
                yield
            finally:
                self._of_thread.threads = 0
                self._add(-min(threads, self.threads))

    def _add(self, threads: int) -> None:
        with self._count:
            self.busy += threads
            self.taken += threads > 0
            self.most = max(self.most, self.busy)


def test_never_more_threads_compute_than_there_are() -> None:
    thread_budget = Watched(4)

    def compute(number: int) -> None:
        for _ in range(20):
            with thread_budget.take((1, 2, 4, 7)[number % 4]):
                time.sleep(0.0005)  # the others come meanwhile

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(compute, range(12)))
    assert (thread_budget.taken, thread_budget.busy) == (240, 0)
    assert thread_budget.most == 4


def test_turns_are_given_in_the_order_in_which_they_were_asked_for() -> None:
    thread_budget, order = ThreadBudget(2), list[str]()

    def compute(name: str, threads: int) -> None:
        with thread_budget.take(threads):
            order.append(name)

    asked = []
    with thread_budget.take(1):
        for name, threads in (("wide", 2), ("narrow", 1), ("wide again", 2)):  # narrow would fit, and waits
            asked.append(threading.Thread(target=compute, args=(name, threads)))
            asked[-1].start()
            wait_for(lambda: len(thread_budget._asked) == len(asked))
        assert not order
    for thread in asked:
        thread.join()
    assert order == ["wide", "narrow", "wide again"]


def test_a_turn_that_fails_is_given_back() -> None:
    thread_budget = ThreadBudget(1)
    with pytest.raises(RuntimeError), thread_budget.take(1):
        raise RuntimeError
    with thread_budget.take(1):
        pass


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Bundle]:
    directory = tmp_path_factory.mktemp("thread_budget")
    return [make_bundle(make_model(seed), directory / f"{seed}", ("fp32",)) for seed in (1, 2)]


def test_engines_that_share_turns_answer_as_each_alone_and_compute_only_in_their_turn(
    bundles: list[Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [generate(source, beam_size=beam) for source in SOURCES * 3 for beam in (1, 4)]
    alone = [[without_timing(result) for result in make_engine(bundle).run(tasks)] for bundle in bundles]
    assert alone[0] != alone[1]
    thread_budget = Watched(2)
    settings = EngineSettings(threads=2, lanes=2, precision="fp32")
    engines = [Engine(bundle, settings, thread_budget=thread_budget) for bundle in bundles]
    outside, step = [], Runner.run

    def watched_step(self: Runner, *arguments: object) -> object:
        outside.append(thread_budget.held() != self.threads)
        return step(self, *arguments)  # type: ignore[arg-type]

    replace_step(monkeypatch, watched_step)
    for engine in engines:
        engine.start()
    callbacks = [Callback(len(tasks)) for _ in engines]
    for engine, callback in zip(engines, callbacks, strict=True):
        engine.submit(tasks, callback)
    found = [
        [without_timing(answers[index]) for index in range(len(tasks))] for answers in (c.wait() for c in callbacks)
    ]
    for engine in engines:
        engine.close()
    assert found == alone
    assert outside
    assert not any(outside)
    assert (thread_budget.most, thread_budget.busy) == (2, 0)


def test_engines_that_share_memory_have_fewer_rows_each(bundles: list[Bundle], monkeypatch: pytest.MonkeyPatch) -> None:
    row = 2**20 / resources.rows_that_fit(bundles[0], "float32") * resources.memory_limit() / 2**20
    monkeypatch.setattr(resources, "memory_limit", lambda: int(100 * row))
    assert resources.rows_that_fit(bundles[0], "float32", 1) == pytest.approx(100, abs=1)
    assert resources.rows_that_fit(bundles[0], "float32", 5) == pytest.approx(20, abs=1)
    with pytest.raises(resources.StartError, match=r"beside the 200 models that may be loaded \(--max-loaded\)"):
        resources.rows_that_fit(bundles[0], "float32", 200)
