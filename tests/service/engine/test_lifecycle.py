"""What an engine takes and refuses, and how it starts, fails and ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attendant.common.hardware import available_cpus
from attendant.export.bundle import Bundle
from attendant.model.transformer import Transformer
from attendant.service.engine import resources as resources_module
from attendant.service.engine.batch.runner import Runner
from attendant.service.engine.tasks import Generate, Generated
from attendant.service.errors import InvalidFieldError, NotReadyError, QueueFullError, StartError
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
from tests.support.threads import in_threads


@pytest.fixture(scope="module")
def model() -> Transformer:
    return make_model(seed=3)


@pytest.fixture(scope="module")
def bundle(model: Transformer, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(model, tmp_path_factory.mktemp("bundle") / "small")


def test_a_full_queue_refuses_all_of_a_request_and_says_when_to_come_again(bundle: Bundle) -> None:
    engine = make_engine(bundle, max_queue_tokens=130)
    engine.submit([Generate(source=(4,), options=LONG)] * 2, Callback(2))
    with pytest.raises(QueueFullError, match=r"full .* try again in \d+ s") as refused:
        engine.submit([Generate(source=(4,), options=LONG)], Callback())
    assert refused.value.retry_after >= 1
    assert engine.count_waiting() == 2


def test_what_could_never_fit_is_refused_for_good(bundle: Bundle) -> None:
    engine = make_engine(bundle, max_queue_requests=2, max_rows=4)
    with pytest.raises(InvalidFieldError, match="3 inputs, and the whole queue holds 2"):
        engine.submit([generate([4])] * 3, Callback(3))
    with pytest.raises(InvalidFieldError, match="more than the 4 that this server decodes together"):
        engine.submit([generate([4], beam_size=5)], Callback())


def test_a_request_of_more_tokens_than_the_queue_holds_is_decoded(bundle: Bundle) -> None:
    engine = make_engine(bundle, max_queue_tokens=150, max_rows=4)
    callback = Callback(10)
    engine.submit([generate([4], beam_size=2)] * 10, callback)
    finish_all(engine)
    assert all(isinstance(answer, Generated) for answer in callback.wait().values())


def test_more_requests_than_rows_are_all_answered(bundle: Bundle) -> None:
    engine = make_engine(bundle, max_rows=3)
    tasks = [generate(SOURCES[i % 4], beam_size=1 + i % 3) for i in range(12)]
    assert [without_timing(a) for a in engine.run(tasks)] == [without_timing(engine.run([t])[0]) for t in tasks]


def test_closing_finishes_what_was_accepted(bundle: Bundle) -> None:
    engine = make_engine(bundle)
    engine.start()
    callback = Callback(8)
    engine.submit([Generate(source=(4,), options=LONG)] * 8, callback)
    engine.close(grace=30)
    assert all(isinstance(answer, Generated) for answer in callback.wait().values())
    with pytest.raises(NotReadyError):
        engine.submit([generate([4])], Callback())


def test_closing_without_grace_fails_what_is_left_and_hangs_nothing(bundle: Bundle) -> None:
    engine = make_engine(bundle, max_rows=1)
    callback = Callback(50)
    engine.submit([Generate(source=(4,), options=LONG)] * 50, callback)
    engine.start()
    engine.close()
    answers = callback.wait()
    assert sorted(answers) == list(range(50))
    assert any(isinstance(answer, NotReadyError) for answer in answers.values())


def test_a_step_that_fails_fails_its_requests_and_no_others(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(bundle)
    real, broken = Runner.run, Callback(2)

    def fail(*_: Any) -> None:
        raise RuntimeError("boom")

    replace_step(monkeypatch, fail)
    engine.submit([generate([4])] * 2, broken)
    engine.start()
    assert {type(answer).__name__ for answer in broken.wait().values()} == {"ServiceError"}
    replace_step(monkeypatch, real)
    fine = Callback()
    engine.submit([generate([4])], fine)
    assert isinstance(fine.wait()[0], Generated)
    engine.close()


def test_after_a_step_that_failed_in_the_graph_the_next_request_gets_its_own_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On graphs whose caches are new tensors at every step, so that what was bound for the failed one is stale."""
    engine = make_engine(make_bundle(make_model(seed=3, score="additive"), tmp_path / "bundle", ("fp32",)))
    wanted, broken, fine = without_timing(engine.run([generate(SOURCES[2])])[0]), Callback(), Callback()
    step = engine._resources.all_threads.step

    def fail(_: Any) -> None:
        monkeypatch.undo()
        raise RuntimeError("boom")

    monkeypatch.setattr(step, "run_with_iobinding", fail, raising=False)
    engine.submit([generate(SOURCES[0])], broken)
    engine.start()
    assert type(broken.wait()[0]).__name__ == "ServiceError"
    engine.submit([generate(SOURCES[2])], fine)
    assert without_timing(fine.wait()[0]) == wanted
    engine.close()


def test_many_threads_each_get_their_own_answers(bundle: Bundle) -> None:
    engine = make_engine(bundle)
    tasks = [generate(SOURCES[i % 4], beam_size=1 + i % 4, max_length=5 + i % 7) for i in range(24)]
    wanted = [without_timing(engine.run([task])[0]) for task in tasks]
    engine.start()
    found: dict[int, Any] = {}

    def client(first: int) -> None:
        for i in range(first, len(tasks), 4):
            callback = Callback()
            engine.submit([tasks[i]], callback)
            found[i] = without_timing(callback.wait()[0])

    in_threads(4, client)
    engine.close()
    assert [found[i] for i in range(len(tasks))] == wanted


def test_a_memory_limit_too_small_for_one_hypothesis_is_a_sentence(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources_module, "memory_limit", lambda: 40_000)
    with pytest.raises(StartError, match=r"memory limit of 0 MB is too small .* one hypothesis .* beside the model"):
        make_engine(bundle)


def test_the_threads_asked_for_are_taken_and_else_no_more_than_there_are(bundle: Bundle) -> None:
    assert make_engine(bundle, threads=2).description.threads == 2
    assert 1 <= make_engine(bundle, threads=0).description.threads <= available_cpus()


def test_a_runner_that_was_probed_answers_as_one_that_was_not(bundle: Bundle) -> None:
    engine, task = make_engine(bundle), generate([4, 5, 6], beam_size=3)
    before = without_timing(engine.run([task])[0])
    assert engine._lanes[0]._runner.probe() > 0
    assert without_timing(engine.run([task])[0]) == before


def test_an_asked_for_provider_or_precision_that_is_not_there_is_refused(bundle: Bundle) -> None:
    with pytest.raises(StartError, match="no CUDA provider"):
        make_engine(bundle, provider="cuda")
    with pytest.raises(StartError, match="--precision fp16 is not in the bundle; it has fp32, int8"):
        make_engine(bundle, precision="fp16")
