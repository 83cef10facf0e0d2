"""The explainer: attention that is torch's, outcomes through limits, deadlines, cancels and shutdown."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attendant.export.bundle import Bundle, BundleError
from attendant.model.text.tokenizer import BOS, EOS
from attendant.model.transformer import AttentionWeights, Transformer
from attendant.service.engine.engine import Engine
from attendant.service.engine.explain import explainer, full_graph
from attendant.service.engine.explain.full_graph import FullGraph, GraphFiles, load_full_graph, open_full_graph
from attendant.service.engine.limits import alignment_of
from attendant.service.engine.tasks import (
    ATTENTION_KINDS,
    AlignmentChoice,
    AttentionChoice,
    Explain,
    Explained,
    Finished,
    Generate,
    Generated,
    Options,
    Score,
    Scored,
)
from attendant.service.errors import (
    CancelledError,
    DeadlineError,
    InvalidFieldError,
    MemoryFullError,
    NotFoundError,
    NotReadyError,
    QueueFullError,
    StartError,
)
from attendant.service.memory import MemoryAccount
from tests.support.engines import Callback, finish_all, make_bundle, make_engine
from tests.support.serving import PATIENCE, wait_for
from tests.support.small_models import make_model

SOURCE, TARGET = (4, 9, 6, 12, 5), (7, 4, 10)
EVERYTHING = AttentionChoice(kinds=ATTENTION_KINDS)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return make_model(seed=5, encoder_layers=3, heads=4)


@pytest.fixture(scope="module")
def bundle(model: Transformer, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(model, tmp_path_factory.mktemp("explained") / "small")


@pytest.fixture
def engine(bundle: Bundle) -> Engine:
    return make_engine(bundle)


def explain(search: Generate | Score | None = None, **changes: Any) -> Explain:
    return Explain(
        **{
            "search": search or Score(source=SOURCE, target=TARGET, record=True),
            "attention": EVERYTHING,
            "alignment": AlignmentChoice(layer=1, heads=(0, 1, 2, 3)),
            "alignable": tuple(range(len(SOURCE))),
            "max_values": 10**6,
            **changes,
        }
    )


def result_of(engine: Engine, task: Explain) -> Explained:
    (found,) = engine.run([task])
    assert isinstance(found, Explained)
    return found


def torch_weights(model: Transformer, source: tuple[int, ...], read: tuple[int, ...]) -> dict[str, Any]:
    weights = AttentionWeights()
    with torch.no_grad():
        model(torch.tensor([[*source, EOS]]), torch.tensor([read]), weights)
    return {kind: torch.stack([layer[0] for layer in getattr(weights, kind)]).numpy() for kind in ATTENTION_KINDS}


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_attention_is_torchs_whatever_decodes(bundle: Bundle, model: Transformer, precision: str) -> None:
    found = result_of(make_engine(bundle, precision=precision), explain())
    expected = torch_weights(model, SOURCE, (BOS, *TARGET))
    assert [weights.kind for weights in found.attention] == list(ATTENTION_KINDS)
    assert found.precision == "fp32"
    for weights in found.attention:
        assert weights.values.shape == expected[weights.kind].shape
        assert np.abs(weights.values - expected[weights.kind]).max() < 1e-4


def test_rows_sum_to_one_and_the_future_is_exactly_zero(engine: Engine) -> None:
    for weights in result_of(engine, explain()).attention:
        assert np.abs(weights.values.sum(axis=-1) - 1).max() < 1e-5
        if weights.kind == "decoder":
            assert (np.triu(weights.values, 1) == 0).all()
            assert (np.tril(weights.values) > 0).sum() == np.tril(np.ones_like(weights.values)).sum()


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 30])
def test_padding_is_exactly_zero_and_cut_off(bundle: Bundle, length: int) -> None:
    graph = FullGraph(GraphFiles(bundle, "fp32"), 1)
    source = (*[5] * (length - 1), EOS)
    assert graph.inside is not None
    whole: list[Any] = graph._session.run(
        ["encoder_attention", "cross_attention"],
        {
            **graph.inside.ablate(None),
            "source": np.array([[*source, *[0] * 4]]),
            "source_length": np.array([length]),
            "target": np.array([[BOS, 4]]),
        },
    )
    assert all((output[..., length:] == 0).all() for output in whole)
    cut = graph.run(source, (BOS, 4), 0)
    assert cut["encoder"].shape[-2:] == (length, length)
    assert cut["cross"].shape[-2:] == (2, length)
    assert np.abs(cut["cross"].sum(-1) - 1).max() < 1e-5


def test_what_is_found_is_what_the_search_alone_finds(engine: Engine) -> None:
    options = Options(max_length=12, beam_size=3, num_hypotheses=2)
    plain = Generate(source=SOURCE, options=options)
    (alone,) = engine.run([plain])
    found = result_of(engine, explain(replace(plain, record=True, top_logprobs=4))).found
    assert isinstance(alone, Generated)
    assert isinstance(found, Generated)
    assert [(h.ids, h.logprobs, h.score) for h in found.hypotheses] == [
        (h.ids, h.logprobs, h.score) for h in alone.hypotheses
    ]
    best = found.hypotheses[0]
    assert len(best.entropies) == len(best.top_logprobs) == len(best.logprobs)


def test_every_step_of_a_given_target_has_its_entropy_and_alternatives(engine: Engine, model: Transformer) -> None:
    search = Score(source=SOURCE, target=TARGET, top_logprobs=3, record=True)
    found = result_of(engine, explain(search)).found
    assert isinstance(found, Scored)
    with torch.no_grad():
        logprobs = model(torch.tensor([[*SOURCE, EOS]]), torch.tensor([[BOS, *TARGET]]))[0].log_softmax(-1)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    assert found.entropies == pytest.approx(entropies.tolist(), abs=1e-4)
    for place, top in enumerate(found.top_logprobs):
        values, ids = logprobs[place].topk(3)
        assert [token for token, _ in top] == ids.tolist()
        assert [logprob for _, logprob in top] == pytest.approx(values.tolist(), abs=1e-4)


def test_start_tokens_are_read_and_have_no_rows(engine: Engine, model: Transformer) -> None:
    found = result_of(engine, explain(Score(source=SOURCE, target=TARGET, start=(8, 9), record=True)))
    expected = torch_weights(model, SOURCE, (BOS, 8, 9, *TARGET))
    assert found.start == (BOS, 8, 9)
    _, decoder, cross = (weights.values for weights in found.attention)
    assert np.abs(decoder - expected["decoder"][:, :, 2:]).max() < 1e-4
    assert np.abs(cross - expected["cross"][:, :, 2:]).max() < 1e-4


def test_an_answer_cut_by_its_length_has_a_row_for_each_token(engine: Engine) -> None:
    search = Generate(source=SOURCE, options=Options(max_length=3, min_length=2), record=True)
    found = result_of(engine, explain(search))
    assert isinstance(found.found, Generated)
    steps = len(found.found.hypotheses[0].logprobs)
    assert [weights.values.shape[-2:] for weights in found.attention] == [(6, 6), (steps, steps), (steps, 6)]


def test_more_weights_than_allowed_are_refused_once_the_target_is_known(engine: Engine) -> None:
    callback = Callback()
    engine.submit([explain(max_values=100)], callback)
    finish_all(engine)
    error = callback.wait()[0]
    assert isinstance(error, InvalidFieldError)
    assert f"{3 * 4 * 36 + 2 * 4 * 16 + 2 * 4 * 24} attention weights, and at most 100" in error.message


def test_a_run_too_large_for_the_memory_is_refused(bundle: Bundle) -> None:
    engine, callback = make_engine(bundle, memory=MemoryAccount(10_000)), Callback()
    engine.submit([explain()], callback)
    finish_all(engine)
    error = callback.wait()[0]
    assert isinstance(error, InvalidFieldError)
    assert "explaining 6 source and 4 target tokens of this model takes about" in error.message


def test_a_run_waits_for_no_memory_that_others_hold(bundle: Bundle) -> None:
    memory = MemoryAccount(10**9)
    engine, callback = make_engine(bundle, memory=memory), Callback()
    with memory.holding(memory.capacity):
        engine.submit([explain()], callback)
        finish_all(engine)
    assert isinstance(callback.wait()[0], MemoryFullError)
    result_of(engine, explain())
    assert memory.held == 0


def test_memory_of_a_model_and_of_the_graph_that_explains_it_is_set_aside_until_it_is_closed(bundle: Bundle) -> None:
    memory = MemoryAccount(10**9)
    engine = make_engine(bundle, memory=memory)
    decoding = memory.model_bytes
    assert decoding > 0
    result_of(engine, explain())
    assert memory.model_bytes > decoding
    engine.close()
    assert memory.model_bytes == 0


def test_a_model_too_large_to_load_again_is_refused(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_graph, "WEIGHTS_SHARE", 1e-9)
    callback, engine = Callback(), make_engine(bundle, precision="int8")
    engine.submit([explain()], callback)
    finish_all(engine)
    error = callback.wait()[0]
    assert isinstance(error, NotFoundError)
    assert "cannot be explained here: its weights take more than" in error.message


def test_where_f32_weights_are_too_large_the_served_ones_explain(tmp_path: Path) -> None:
    bundle = make_bundle(make_model(seed=3, d_model=128, d_ff=256), tmp_path / "wide")  # weights outweigh the graphs
    opened = open_full_graph(bundle, "int8")
    assert [files.precision for files in opened] == ["fp32", "int8"]
    small = int(opened[1].bytes / full_graph.WEIGHTS_SHARE * full_graph.MEMORY_PER_WEIGHT) + 1
    assert opened[1].bytes < opened[0].bytes
    assert load_full_graph(opened, 1, MemoryAccount(small), "small").precision == "int8"


def test_a_bundle_that_was_replaced_is_explained_by_its_own_graph(model: Transformer, tmp_path: Path) -> None:
    old = make_bundle(model, tmp_path / "b")
    engine, expected = make_engine(old), result_of(make_engine(old), explain())
    make_bundle(make_model(seed=6, encoder_layers=3, heads=4), tmp_path / "b")
    found = result_of(engine, explain())
    for mine, other in zip(found.attention, expected.attention, strict=True):
        assert np.array_equal(mine.values, other.values)
    assert found.found.logprobs == expected.found.logprobs  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["full.onnx", "weights.bin"])
def test_a_file_that_was_written_over_is_not_used(model: Transformer, tmp_path: Path, name: str) -> None:
    engine = make_engine(make_bundle(model, tmp_path / "b", ("fp32",)))
    with (tmp_path / "b" / "fp32" / name).open("r+b") as file:
        file.seek(100)
        byte = file.read(1)[0]
        file.seek(100)
        file.write(bytes([byte ^ 1]))  # the last bit of a number: the weights that run are this file
    callback = Callback()
    engine.submit([explain()], callback)
    finish_all(engine)
    error = callback.wait()[0]
    assert isinstance(error, NotFoundError)
    assert f"{name} was changed since the model was loaded; reload the model" in error.message


def test_a_bundle_that_is_replaced_while_it_is_loaded_is_refused(
    model: Transformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, certify = make_bundle(model, tmp_path / "b", ("fp32",)), Engine._certify

    def replacing(engine: Engine) -> Any:
        make_bundle(make_model(seed=6, encoder_layers=3, heads=4), tmp_path / "b", ("fp32",))
        return certify(engine)

    monkeypatch.setattr(Engine, "_certify", replacing)
    with pytest.raises(BundleError, match="was replaced while it was being loaded"):
        make_engine(bundle)


def test_the_graph_is_loaded_on_first_use_and_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    monkeypatch.setattr(full_graph, "FullGraph", lambda *given: loaded.append(given) or FullGraph(*given))
    engine.run([Score(source=SOURCE, target=TARGET)])
    assert not loaded
    for _ in range(2):
        engine.run([explain()])
    assert len(loaded) == 1


def test_an_explanation_is_priced_above_its_search() -> None:
    score = Score(source=SOURCE, target=TARGET)
    assert explain(score).token_budget == score.token_budget + 6 + 4
    generate = Generate(source=SOURCE, options=Options(max_length=9, beam_size=2))
    assert explain(generate).token_budget == generate.token_budget + 6 + 9


def test_too_many_at_once_are_refused_and_outcomes_make_room(engine: Engine) -> None:
    callback = Callback(explainer.MAX_PENDING)
    engine.submit([explain()] * explainer.MAX_PENDING, callback)
    with pytest.raises(QueueFullError):
        engine.submit([explain()], callback)
    engine.submit([Score(source=SOURCE, target=TARGET)], lambda _: None)  # others do not wait for them
    finish_all(engine)
    assert all(isinstance(answer, Explained) for answer in callback.wait().values())
    result_of(engine, explain())


def test_what_the_queue_refuses_leaves_the_room(bundle: Bundle) -> None:
    engine = make_engine(bundle, max_queue_requests=1)
    for _ in range(explainer.MAX_PENDING + 1):
        with pytest.raises(InvalidFieldError):
            engine.submit([explain()] * 2, lambda _: None)
    result_of(engine, explain())


def test_a_cancelled_one_does_not_run(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    callback = Callback()
    submitted = engine.submit([explain()], callback)
    monkeypatch.setattr(explainer.FullGraph, "run", lambda *_: pytest.fail("it ran"))
    while engine._scheduler.count_running() or engine.count_waiting():  # until its search is done
        for lane in engine._lanes:
            lane.iteration(most_steps=1)
    submitted.cancel()
    finish_all(engine)
    assert isinstance(callback.wait()[0], CancelledError)


def test_past_its_deadline_it_is_504_even_where_there_is_a_hypothesis(engine: Engine) -> None:
    search = Generate(source=SOURCE, options=Options(max_length=60, min_length=59), record=True)
    callback = Callback()
    engine.submit([explain(search)], callback, time.monotonic() + 3600)
    for _ in range(10):
        engine.iteration()
    for lane in engine._lanes:
        for job in lane._jobs:
            job.deadline = time.monotonic() - 1
    finish_all(engine)
    assert isinstance(callback.wait()[0], DeadlineError)


def test_a_run_that_fails_fails_its_request_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    run = explainer.FullGraph.run
    calls = []

    def fail_first(self: explainer.FullGraph, *given: Any) -> Any:
        calls.append(given)
        if len(calls) == 1:
            raise RuntimeError("out of memory")
        return run(self, *given)

    monkeypatch.setattr(explainer.FullGraph, "run", fail_first)
    callback = Callback(2)
    engine.submit([explain(), explain()], callback)
    finish_all(engine)
    first, second = (callback.wait()[index] for index in range(2))
    assert "failed while explaining" in str(first)
    assert isinstance(second, Explained)


def test_beside_other_requests_all_get_what_they_get_alone(bundle: Bundle) -> None:
    alone = make_engine(bundle)
    tasks = [explain(), Score(source=SOURCE, target=TARGET), Generate(source=SOURCE, options=Options(max_length=20))]
    expected = [alone.run([task])[0] for task in tasks]
    engine = make_engine(bundle, threads=2, lanes=2)
    engine.start()
    callback = Callback(24)
    engine.submit(tasks * 8, callback)
    answers = callback.wait()
    engine.close(10)
    for index, answer in answers.items():
        wanted = expected[index % 3]
        if isinstance(wanted, Explained):
            assert isinstance(answer.found, Scored)
            assert answer.found.logprobs == wanted.found.logprobs  # type: ignore[union-attr]
            assert answer.pairs == wanted.pairs
        elif isinstance(wanted, Generated):
            assert answer.hypotheses == wanted.hypotheses
        else:
            assert answer.logprobs == wanted.logprobs  # type: ignore[union-attr]


def test_accepted_ones_finish_at_a_shutdown_with_grace(bundle: Bundle) -> None:
    engine = make_engine(bundle)
    engine.start()
    callback = Callback(20)
    engine.submit([explain()] * 20, callback)
    engine.close(30.0)
    assert [type(answer) for answer in callback.wait().values()] == [Explained] * 20
    assert not engine.count_running()


def test_those_that_wait_fail_at_a_shutdown_without_grace(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is being explained is finished."""
    running, may_go_on, run = threading.Event(), threading.Event(), explainer.FullGraph.run

    def held(self: explainer.FullGraph, *given: Any) -> Any:
        running.set()
        assert may_go_on.wait(PATIENCE)
        return run(self, *given)

    monkeypatch.setattr(explainer.FullGraph, "run", held)
    engine = make_engine(bundle)
    engine.start()
    callback = Callback(20)
    engine.submit([explain()] * 20, callback)
    assert running.wait(PATIENCE)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(engine.close, 0.0)
        try:
            wait_for(lambda: engine._explainer._queue._stopped)
        finally:
            may_go_on.set()
        closing.result(PATIENCE)
    answers = callback.wait()
    assert Counter(type(answer) for answer in answers.values()) == {Explained: 1, NotReadyError: 19}
    assert not engine.count_running()


def test_the_bundles_alignment_holds_and_one_out_of_range_does_not_start(bundle: Bundle) -> None:
    assert alignment_of(bundle) == AlignmentChoice(layer=1, heads=(0, 1, 2, 3))
    chosen = {"layer": 0, "heads": [2], "method": "mutual", "agreement": 0.5}
    assert alignment_of(replace(bundle, alignment=chosen)) == AlignmentChoice(layer=0, heads=(2,), method="mutual")
    for wrong in ({"layer": 2}, {"layer": -1}, {"heads": []}, {"heads": [4]}, {"method": "magic"}):
        with pytest.raises(StartError, match="alignment in its manifest"):
            alignment_of(replace(bundle, alignment={**chosen, **wrong}))


def test_a_bundle_with_fp16_alone_explains(model: Transformer, tmp_path: Path) -> None:
    bundle = make_bundle(model, tmp_path / "half", ("fp16",))
    found = result_of(make_engine(bundle, precision="fp16"), explain())
    expected = torch_weights(model, SOURCE, (BOS, *TARGET))
    for weights in found.attention:
        assert weights.values.dtype == np.float32
        assert np.abs(weights.values - expected[weights.kind]).max() < 1e-2


def test_outcomes_come_once(engine: Engine) -> None:
    events: list[Any] = []
    engine.submit([explain()], events.append)
    finish_all(engine)
    assert [type(event) for event in events] == [Finished]
