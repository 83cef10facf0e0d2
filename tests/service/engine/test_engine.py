"""The engine: the torch oracle's answers, the same whatever else is in flight, and one outcome for everything."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendant.export.bundle import Bundle
from attendant.model.search import reference
from attendant.model.transformer import Transformer
from attendant.service.engine.engine import Engine
from attendant.service.engine.search.constraints.choices import Choices
from attendant.service.engine.search.constraints.constraints import Constraints
from attendant.service.engine.search.constraints.forbidden import Forbidden, chain
from attendant.service.engine.search.constraints.terms import Form, Term
from attendant.service.engine.tasks import (
    Distribution,
    EarlyStopping,
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
from attendant.service.errors import CancelledError, DeadlineError
from tests.support.engines import (
    LONG,
    SOURCES,
    Callback,
    finish_all,
    generate,
    make_bundle,
    make_engine,
    without_timing,
)
from tests.support.small_models import make_model


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


@pytest.mark.parametrize("source", SOURCES, ids=len)
@pytest.mark.parametrize(
    ("beam", "penalty", "early"),
    [(1, 1.0, True), (1, 1.0, False), (3, 1.0, True), (4, 0.0, "never"), (5, 2.0, False), (30, 1.0, True)],
)
def test_decoding_is_the_torch_oracles(
    model: Transformer, engine: Engine, source: list[int], beam: int, penalty: float, early: EarlyStopping
) -> None:
    count = min(beam, 3)
    wanted = reference.beam(model, source, beam, penalty, count, 20, early)
    options = {"beam_size": beam, "length_penalty": penalty, "num_hypotheses": count, "early_stopping": early}
    [found] = engine.run([generate(source, **options)])
    assert isinstance(found, Generated)
    assert [h.ids for h in found.hypotheses] == [h.ids for h in wanted]
    assert [h.finish_reason for h in found.hypotheses] == [h.finish_reason for h in wanted]
    assert [h.score for h in found.hypotheses] == pytest.approx([h.score(penalty) for h in wanted], abs=1e-4)


@pytest.mark.parametrize(
    "changes", [{"score": "gaussian"}, {"score": "additive"}, {"norm": "pre"}, {"heads": 4}], ids=str
)
def test_decoding_without_kernel_graphs_is_the_torch_oracles(changes: dict[str, Any], tmp_path: Path) -> None:
    model = make_model(seed=5, **changes)
    bundle = make_bundle(model, tmp_path / "bundle", ("fp32",))
    if "kernel_step" in bundle.variants["fp32"].graphs:
        del bundle.variants["fp32"].graphs["kernel_step"]
    engine = make_engine(bundle)
    assert not engine._resources.all_threads.has_kernels
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
        beam=st.integers(1, 6),
        count=st.integers(1, 3),
        length_penalty=st.sampled_from([0.0, 0.7, 1.0]),
        early_stopping=st.sampled_from([True, False, "never"]),
        max_length=length,
        min_length=st.integers(0, 6),
        repetition_penalty=st.sampled_from([1.0, 1.3]),
        no_repeat_ngram_size=st.sampled_from([0, 2]),
    )
    samples = st.builds(
        Options,
        num_hypotheses=st.integers(1, 4),
        max_length=length,
        temperature=st.sampled_from([0.7, 1.0]),
        top_k=st.sampled_from([None, 3]),
        top_p=st.sampled_from([None, 0.8]),
        seed=st.integers(0, 99),
    )
    phrase = st.lists(st.integers(4, 10), min_size=1, max_size=2).map(tuple)
    phrases = st.lists(phrase, min_size=1, max_size=2)
    forbidden = phrases.map(lambda found: Constraints(forbidden=Forbidden(map(chain, found))))
    choices = phrases.map(lambda found: Constraints(choices=Choices(found)))
    terms = phrases.map(lambda found: Constraints(terms=tuple(Term((Form(ids, ""),)) for ids in found)))
    return st.one_of(
        st.builds(Generate, source=source, options=beams, prefix=prefix),
        st.builds(Generate, source=source, options=beams, constraints=terms | forbidden | choices),
        st.builds(Generate, source=source, options=samples, constraints=forbidden | choices),
        st.builds(Generate, source=source, options=samples, prefix=prefix),
        st.builds(NextToken, source=source, prefix=prefix),
        st.builds(Score, source=source, target=prefix),
    )


@settings(deadline=None, max_examples=25)
@given(tasks=st.lists(a_task(), min_size=2, max_size=12), late=st.integers(0, 9), data=st.data())
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_an_answer_is_the_same_to_the_bit_whatever_else_is_in_flight(
    engine: Engine, int8_engine: Engine, precision: str, tasks: list[Task], late: int, data: st.DataObject
) -> None:
    """Some tasks start together, others join some steps later, and one is given up on the way."""
    shared = engine if precision == "fp32" else int8_engine
    alone = [without_timing(shared.run([task])[0]) for task in tasks]
    early, callback = data.draw(st.integers(1, len(tasks) - 1)), [Callback(), Callback(), Callback()]
    shared.submit(tasks[:early], callback[0])
    given_up = shared.submit([Generate(source=(4, 5), options=LONG)], callback[1])
    for _ in range(late):
        shared.iteration()
    shared.submit(tasks[early:], callback[2])
    given_up.cancel()
    finish_all(shared)
    together = [
        without_timing(event.answer)
        for listener in (callback[0], callback[2])
        for event in sorted(
            (event for event in listener.events if isinstance(event, Finished)), key=lambda event: event.index
        )
    ]
    assert together == alone
    assert isinstance(callback[1].events[-1].answer, CancelledError)  # type: ignore[union-attr]


@pytest.mark.parametrize(("threads", "lanes"), [(2, 2), (3, 3), (5, 5), (8, 4)])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_an_answer_is_the_same_to_the_bit_in_any_lane_with_any_number_of_threads(
    bundle: Bundle, precision: str, threads: int, lanes: int
) -> None:
    rng = np.random.default_rng(5)
    sources = [rng.integers(4, 13, rng.integers(1, 40)).tolist() for _ in range(40)]
    tasks = [generate(source, beam_size=1 + 3 * (i % 2), max_length=30) for i, source in enumerate(sources)]
    alone = make_engine(bundle, precision=precision)
    wanted = [without_timing(alone.run([task])[0]) for task in tasks]
    shared = make_engine(bundle, precision=precision, threads=threads, lanes=lanes)
    callback = Callback(len(tasks))
    assert shared.description.lanes == lanes
    shared.start()
    shared.submit(tasks, callback)
    answers = callback.wait()
    shared.close()
    assert [without_timing(answers[i]) for i in range(len(tasks))] == wanted


def test_a_source_much_longer_than_the_others_changes_nothing_for_them(engine: Engine) -> None:
    short = [generate([5, 6]), generate([7], beam_size=3)]
    alone = [without_timing(engine.run([task])[0]) for task in short]
    together = engine.run([short[0], generate([6] * 63), short[1]])
    assert [without_timing(together[i]) for i in (0, 2)] == alone


@pytest.mark.parametrize("beam_size", [1, 3])
def test_start_tokens_are_decoded_before_every_target_and_never_answered(
    beam_size: int, bundle: Bundle, engine: Engine
) -> None:
    start = (6, 9)  # a language, say
    started = make_engine(replace(bundle, generation={"target_prefix": list(start)}))
    assert started.description.max_target_length == engine.description.max_target_length - len(start)
    for source in SOURCES:
        [found] = started.run([generate(source, beam_size=beam_size, length_penalty=0.0)])
        prefixed = Generate(
            source=tuple(source), prefix=start, options=Options(max_length=22, beam_size=beam_size, length_penalty=0.0)
        )
        [wanted] = engine.run([prefixed])
        assert isinstance(found, Generated)
        assert isinstance(wanted, Generated)
        assert [h.ids for h in found.hypotheses] == [h.ids[2:] for h in wanted.hypotheses]
        assert [h.logprobs for h in found.hypotheses] == [h.logprobs[2:] for h in wanted.hypotheses]
        best = found.hypotheses[0]
        [scored, following] = started.run(
            [Score(source=tuple(source), target=best.ids), NextToken(source=tuple(source))]
        )
        assert isinstance(scored, Scored)
        assert isinstance(following, Distribution)
        assert scored.logprobs[: len(best.logprobs)] == pytest.approx(best.logprobs, abs=1e-6)
        assert following.logprobs[best.ids[0]] == pytest.approx(best.logprobs[0], abs=1e-6)


def test_streamed_tokens_are_the_answers(engine: Engine) -> None:
    options = [Options(beam_size=beam, max_length=20) for beam in (1, 4)]
    options += [Options(max_length=20, temperature=1.0, seed=seed) for seed in range(4)]
    tasks = [Generate(source=tuple(SOURCES[2]), options=chosen, stream=True) for chosen in options]
    callback = Callback(len(tasks))
    engine.submit(tasks, callback)
    finish_all(engine)
    for index, answer in callback.wait().items():
        parts = [event for event in callback.events if isinstance(event, NewTokens) and event.index == index]
        best = answer.hypotheses[0]
        assert tuple(token for part in parts for token in part.ids) == best.ids
        assert tuple(value for part in parts for value in part.logprobs) == best.logprobs[: len(best.ids)]


def test_greedy_streams_token_by_token(engine: Engine) -> None:
    callback = Callback()
    engine.submit([Generate(source=(4, 5), options=LONG, stream=True)], callback)
    finish_all(engine)
    assert [len(event.ids) for event in callback.events if isinstance(event, NewTokens)] == [1] * 64


def test_a_deadline_answers_with_the_best_so_far(engine: Engine) -> None:
    callback = Callback()
    engine.submit([Generate(source=(4,), options=LONG)], callback, deadline=time.monotonic() + 3600)
    for _ in range(3):
        engine.iteration()
    for job in engine._lanes[0]._jobs:
        job.deadline = time.monotonic()
    engine.iteration()
    found = callback.wait()[0].hypotheses[0]
    assert found.finish_reason == "deadline"
    assert len(found.ids) == 3
    assert engine.count_running() == 0


def test_a_deadline_that_passed_before_anything_was_decoded_is_an_error(engine: Engine) -> None:
    callback = Callback()
    engine.submit([Generate(source=(4,), options=LONG)], callback, deadline=time.monotonic() - 1)
    engine.iteration()
    assert isinstance(callback.wait()[0], DeadlineError)
