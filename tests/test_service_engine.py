"""The engine: the torch oracle's answers, the same whatever else is in flight, and one outcome for everything."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from export.bundle import Bundle
from model import reference
from model.transformer import Transformer
from service import engine as engine_module
from service.engine import Engine
from service.errors import CancelledError, DeadlineError, InvalidFieldError, NotReadyError, QueueFullError, StartError
from service.hardware import available_cpus
from service.rows import of_like_length
from service.session import Session
from service.tasks import (
    Distribution,
    Finished,
    Generate,
    Generated,
    NewTokens,
    NextToken,
    Options,
    Score,
    Scored,
    Task,
)
from tests.conftest import make_model
from tests.engines import SOURCES, change_manifest, make_bundle, make_engine

LONG = Options(max_length=64, min_length=64)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return make_model(seed=3)


@pytest.fixture(scope="module")
def bundle(model: Transformer, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(model, tmp_path_factory.mktemp("bundle") / "small")


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> Engine:
    return make_engine(bundle)


@pytest.fixture(scope="module")
def int8_engine(bundle: Bundle) -> Engine:
    return make_engine(bundle, precision="int8")


def generate(source: list[int], **options: Any) -> Generate:
    return Generate(source=tuple(source), options=Options(**{"max_length": 20} | options))


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self, count: int = 1) -> None:
        self.events: list[NewTokens | Finished] = []
        self._missing, self._done = count, threading.Event()

    def __call__(self, event: NewTokens | Finished) -> None:
        self.events.append(event)
        self._missing -= isinstance(event, Finished)
        if not self._missing:
            self._done.set()

    def wait(self) -> dict[int, Any]:
        """The answers by index, each heard once."""
        assert self._done.wait(30)
        finished = [event for event in self.events if isinstance(event, Finished)]
        answers = {event.index: event.answer for event in finished}
        assert len(answers) == len(finished)
        return answers


@pytest.mark.parametrize("source", SOURCES, ids=len)
@pytest.mark.parametrize(("beam", "penalty"), [(1, 1.0), (3, 1.0), (4, 0.0), (5, 2.0), (30, 1.0)])
def test_decoding_is_the_torch_oracles(
    model: Transformer, engine: Engine, source: list[int], beam: int, penalty: float
) -> None:
    count = min(beam, 3)
    wanted = reference.beam(model, source, beam, penalty, count, max_length=20)
    [found] = engine.run([generate(source, beam_size=beam, length_penalty=penalty, num_hypotheses=count)])
    assert isinstance(found, Generated)
    assert [h.ids for h in found.hypotheses] == [h.ids for h in wanted]
    assert [h.finish_reason for h in found.hypotheses] == [h.finish_reason for h in wanted]
    assert [h.score for h in found.hypotheses] == pytest.approx([h.score(penalty) for h in wanted], abs=1e-4)


@pytest.mark.parametrize(
    "changes", [{"score": "gaussian"}, {"score": "additive"}, {"norm": "pre"}, {"heads": 4}], ids=str
)
def test_decoding_without_fast_graphs_is_the_torch_oracles(changes: dict[str, Any], tmp_path: Path) -> None:
    model = make_model(seed=5, **changes)
    bundle = make_bundle(model, tmp_path / "bundle", ("fp32",))
    if "fast_step" in bundle.variants["fp32"].graphs:
        del bundle.variants["fp32"].graphs["fast_step"]
    engine = make_engine(bundle)
    assert not engine.describe()["fast_graphs"]
    tasks = [generate(source, beam_size=beam) for source in SOURCES for beam in (1, 4)]
    for task, found in zip(tasks, engine.run(tasks), strict=True):
        assert isinstance(found, Generated)
        wanted = reference.beam(model, list(task.source), task.options.beam_size, max_length=20)[0]
        assert found.hypotheses[0].ids == wanted.ids


def test_the_next_token_distribution_is_torchs_softmax(model: Transformer, engine: Engine) -> None:
    rng = np.random.default_rng(0)
    pairs = [
        (rng.integers(4, 13, rng.integers(1, 20)).tolist(), rng.integers(4, 11, rng.integers(0, 9)).tolist())
        for _ in range(200)
    ]
    answers = engine.run([NextToken(source=tuple(source), prefix=tuple(prefix)) for source, prefix in pairs])
    for (source, prefix), found in zip(pairs, answers, strict=True):
        assert isinstance(found, Distribution)
        wanted = reference.next_logprobs(model, source, tuple(prefix))
        np.testing.assert_allclose(np.exp(found.logprobs), np.exp(wanted), atol=1e-4)
        assert np.exp(found.logprobs.astype(np.float64)).sum() == pytest.approx(1, abs=1e-5)
        assert len(found.prefix_logprobs) == len(prefix)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_what_is_scored_again_is_what_was_reported(bundle: Bundle, precision: str) -> None:
    engine = make_engine(bundle, precision=precision)
    answers = engine.run([generate(source, beam_size=4, num_hypotheses=4) for source in SOURCES])
    for source, answer in zip(SOURCES, answers, strict=True):
        assert isinstance(answer, Generated)
        for found in answer.hypotheses:
            [scored] = engine.run([Score(source=tuple(source), target=found.ids)])
            assert isinstance(scored, Scored)
            assert scored.logprobs[: len(found.logprobs)] == found.logprobs


def a_task() -> st.SearchStrategy[Task]:
    source = st.lists(st.integers(4, 12), min_size=1, max_size=40).map(tuple)
    prefix = st.lists(st.integers(4, 10), max_size=3).map(tuple)
    length = st.integers(4, 24)
    beams = st.builds(
        lambda beam, count, **rest: Options(beam_size=beam, num_hypotheses=min(beam, count), **rest),
        beam=st.integers(1, 6), count=st.integers(1, 3), length_penalty=st.sampled_from([0.0, 0.7, 1.0]),
        max_length=length, min_length=st.integers(0, 6), repetition_penalty=st.sampled_from([1.0, 1.3]),
        no_repeat_ngram_size=st.sampled_from([0, 2]),
    )  # fmt: skip
    samples = st.builds(
        Options, num_hypotheses=st.integers(1, 4), max_length=length, temperature=st.sampled_from([0.7, 1.0]),
        top_k=st.sampled_from([None, 3]), top_p=st.sampled_from([None, 0.8]), seed=st.integers(0, 99),
    )  # fmt: skip
    return st.one_of(
        st.builds(Generate, source=source, options=beams, prefix=prefix),
        st.builds(Generate, source=source, options=samples, prefix=prefix),
        st.builds(NextToken, source=source, prefix=prefix),
        st.builds(Score, source=source, target=prefix),
    )


def without_timing(answer: Any) -> Any:
    if isinstance(answer, Generated):
        return answer.hypotheses
    if isinstance(answer, Distribution):
        return answer.logprobs.tobytes(), answer.prefix_logprobs
    return answer.logprobs


@settings(deadline=None, max_examples=25)
@given(tasks=st.lists(a_task(), min_size=2, max_size=12), late=st.integers(0, 9), data=st.data())
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_an_answer_is_the_same_to_the_bit_whatever_else_is_in_flight(
    engine: Engine, int8_engine: Engine, precision: str, tasks: list[Task], late: int, data: st.DataObject
) -> None:
    """Some tasks start together, others join some steps later, and one is given up on the way."""
    shared = engine if precision == "fp32" else int8_engine
    alone = [without_timing(shared.run([task])[0]) for task in tasks]
    early, heard = data.draw(st.integers(1, len(tasks) - 1)), [Heard(), Heard(), Heard()]
    shared.submit(tasks[:early], heard[0])
    given_up = shared.submit([Generate(source=(4, 5), options=LONG)], heard[1])
    for _ in range(late):
        shared.turn()
    shared.submit(tasks[early:], heard[2])
    given_up.cancel()
    while shared.running() or shared.waiting():
        shared.turn()
    together = [
        without_timing(event.answer)
        for listener in (heard[0], heard[2])
        for event in sorted(
            (event for event in listener.events if isinstance(event, Finished)), key=lambda event: event.index
        )
    ]
    assert together == alone
    assert isinstance(heard[1].events[-1].answer, CancelledError)  # type: ignore[union-attr]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_an_answer_is_the_same_to_the_bit_in_any_lane_with_any_number_of_threads(
    bundle: Bundle, precision: str
) -> None:
    rng = np.random.default_rng(5)
    sources = [rng.integers(4, 13, rng.integers(1, 40)).tolist() for _ in range(40)]
    tasks = [generate(source, beam_size=1 + 3 * (i % 2), max_length=30) for i, source in enumerate(sources)]
    alone = make_engine(bundle, precision=precision)
    wanted = [without_timing(alone.run([task])[0]) for task in tasks]
    shared, heard = make_engine(bundle, precision=precision, threads=2, lanes=2), Heard(len(tasks))
    assert shared.describe()["lanes"] == 2
    shared.start()
    shared.submit(tasks, heard)
    answers = heard.wait()
    shared.close()
    assert [without_timing(answers[i]) for i in range(len(tasks))] == wanted


def test_a_source_much_longer_than_the_others_changes_nothing_for_them(engine: Engine) -> None:
    short = [generate([5, 6]), generate([7], beam_size=3)]
    alone = [without_timing(engine.run([task])[0]) for task in short]
    together = engine.run([short[0], generate([6] * 63), short[1]])
    assert [without_timing(together[i]) for i in (0, 2)] == alone


def test_sources_are_encoded_in_groups_of_like_length_each_once() -> None:
    rng = np.random.default_rng(0)
    lengths = sorted(int(n) for n in rng.integers(1, 60, 50))
    groups = of_like_length([(4,) * n for n in lengths])
    assert [len(source) for group in groups for source in group] == lengths
    for group in groups:
        tokens = sum(len(source) + 1 for source in group)
        padded = len(group) * (len(group[-1]) + 1)
        assert padded <= 1.15 * tokens or tokens - len(group[-1]) - 1 < 24


def test_streamed_tokens_are_the_answers(engine: Engine) -> None:
    options = [Options(beam_size=beam, max_length=20) for beam in (1, 4)]
    options += [Options(max_length=20, temperature=1.0, seed=seed) for seed in range(4)]
    tasks = [Generate(source=tuple(SOURCES[2]), options=chosen, stream=True) for chosen in options]
    heard = Heard(len(tasks))
    engine.submit(tasks, heard)
    while engine.running() or engine.waiting():
        engine.turn()
    for index, answer in heard.wait().items():
        parts = [event for event in heard.events if isinstance(event, NewTokens) and event.index == index]
        best = answer.hypotheses[0]
        assert tuple(token for part in parts for token in part.ids) == best.ids
        assert tuple(value for part in parts for value in part.logprobs) == best.logprobs[: len(best.ids)]


def test_greedy_streams_token_by_token(engine: Engine) -> None:
    heard = Heard()
    engine.submit([Generate(source=(4, 5), options=LONG, stream=True)], heard)
    while engine.running() or engine.waiting():
        engine.turn()
    assert [len(event.ids) for event in heard.events if isinstance(event, NewTokens)] == [1] * 64


def test_a_deadline_answers_with_the_best_so_far(engine: Engine) -> None:
    heard = Heard()
    engine.submit([Generate(source=(4,), options=LONG)], heard, deadline=time.monotonic() + 3600)
    for _ in range(3):
        engine.turn()
    for job in engine._scheduler.running[0]:
        job.deadline = time.monotonic()
    engine.turn()
    found = heard.wait()[0].hypotheses[0]
    assert found.finish_reason == "deadline"
    assert len(found.ids) == 3
    assert engine.running() == 0


def test_a_deadline_that_passed_before_anything_was_decoded_is_an_error(engine: Engine) -> None:
    heard = Heard()
    engine.submit([Generate(source=(4,), options=LONG)], heard, deadline=time.monotonic() - 1)
    engine.turn()
    assert isinstance(heard.wait()[0], DeadlineError)


def test_a_full_queue_refuses_all_of_a_request_and_says_when_to_come_again(bundle: Bundle) -> None:
    engine = make_engine(bundle, max_queue_tokens=150)
    engine.submit([Generate(source=(4,), options=LONG)] * 2, Heard(2))
    with pytest.raises(QueueFullError, match=r"full .* try again in \d+ s") as refused:
        engine.submit([Generate(source=(4,), options=LONG)], Heard())
    assert refused.value.retry_after >= 1
    assert engine.waiting() == 2


def test_what_could_never_fit_is_refused_for_good(bundle: Bundle) -> None:
    engine = make_engine(bundle, max_queue_tokens=150, max_rows=4)
    with pytest.raises(InvalidFieldError, match="queue holds 150 tokens"):
        engine.submit([Generate(source=(4,), options=LONG)] * 3, Heard(3))
    with pytest.raises(InvalidFieldError, match="more than the 4 that this server decodes together"):
        engine.submit([generate([4], beam_size=5)], Heard())


def test_more_requests_than_rows_are_all_answered(bundle: Bundle) -> None:
    engine = make_engine(bundle, max_rows=3)
    tasks = [generate(SOURCES[i % 4], beam_size=1 + i % 3) for i in range(12)]
    assert [without_timing(a) for a in engine.run(tasks)] == [without_timing(engine.run([t])[0]) for t in tasks]


def test_closing_finishes_what_was_accepted(bundle: Bundle) -> None:
    engine = make_engine(bundle)
    engine.start()
    heard = Heard(8)
    engine.submit([Generate(source=(4,), options=LONG)] * 8, heard)
    engine.close(grace=30)
    assert all(isinstance(answer, Generated) for answer in heard.wait().values())
    with pytest.raises(NotReadyError):
        engine.submit([generate([4])], Heard())


def test_closing_without_grace_fails_what_is_left_and_hangs_nothing(bundle: Bundle) -> None:
    engine = make_engine(bundle, max_rows=1)
    heard = Heard(50)
    engine.submit([Generate(source=(4,), options=LONG)] * 50, heard)
    engine.start()
    engine.close()
    answers = heard.wait()
    assert sorted(answers) == list(range(50))
    assert any(isinstance(answer, NotReadyError) for answer in answers.values())


def test_a_step_that_fails_fails_its_requests_and_no_others(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(bundle)
    real, broken = Session.step, Heard(2)

    def fail(*_: Any) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(Session, "step", fail)
    engine.submit([generate([4])] * 2, broken)
    engine.start()
    assert {type(answer).__name__ for answer in broken.wait().values()} == {"ServiceError"}
    monkeypatch.setattr(Session, "step", real)
    fine = Heard()
    engine.submit([generate([4])], fine)
    assert isinstance(fine.wait()[0], Generated)
    engine.close()


def test_after_a_step_that_failed_in_the_graph_the_next_request_gets_its_own_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On graphs whose caches are new tensors at every step, so that what was bound for the failed one is stale."""
    engine = make_engine(make_bundle(make_model(seed=3, score="additive"), tmp_path / "bundle", ("fp32",)))
    wanted, broken, fine = without_timing(engine.run([generate(SOURCES[2])])[0]), Heard(), Heard()
    step = engine._runtimes[0].step

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
            heard = Heard()
            engine.submit([tasks[i]], heard)
            found[i] = without_timing(heard.wait()[0])

    threads = [threading.Thread(target=client, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.close()
    assert [found[i] for i in range(len(tasks))] == wanted


def test_a_bundle_that_drifts_from_its_certificate_does_not_start(model: Transformer, tmp_path: Path) -> None:
    bundle = make_bundle(model, tmp_path / "bundle", ("fp32",))
    bundle.certificate["samples"][1]["greedy"]["logprobs"][0] -= 0.01
    with pytest.raises(StartError, match=r"fails its certificate on this machine: .* off by 0\.01"):
        make_engine(bundle)


def test_a_certificate_that_makes_no_sense_does_not_start(model: Transformer, tmp_path: Path) -> None:
    bundle = make_bundle(model, tmp_path / "bundle", ("fp32",))
    bundle.certificate["samples"][0]["next_token"] = {"ids": [99], "logprobs": [0.0]}
    with pytest.raises(StartError, match="certificate cannot be read"):
        make_engine(bundle)
    change_manifest(bundle)


def test_a_memory_limit_too_small_for_one_hypothesis_is_a_sentence(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "memory_limit", lambda: 40_000)
    with pytest.raises(StartError, match=r"memory limit of 0 MB is too small .* one hypothesis .* beside the model"):
        make_engine(bundle)


def test_the_threads_asked_for_are_taken_and_else_no_more_than_there_are(bundle: Bundle) -> None:
    assert make_engine(bundle, threads=2).describe()["threads"] == 2
    assert 1 <= make_engine(bundle, threads=0).describe()["threads"] <= available_cpus()


def test_a_session_that_was_probed_answers_as_one_that_was_not(bundle: Bundle) -> None:
    engine, task = make_engine(bundle), generate([4, 5, 6], beam_size=3)
    before = without_timing(engine.run([task])[0])
    assert engine._lanes[0]._session.probe() > 0
    assert without_timing(engine.run([task])[0]) == before


def test_an_asked_for_provider_or_precision_that_is_not_there_is_refused(bundle: Bundle) -> None:
    with pytest.raises(StartError, match="no CUDA provider"):
        make_engine(bundle, provider="cuda")
    with pytest.raises(StartError, match="--precision fp16 is not in the bundle; it has fp32, int8"):
        make_engine(bundle, precision="fp16")
