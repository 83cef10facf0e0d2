"""CTranslate2 gets the very same model, and whoever compares times has compared tokens before."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from attendant.model.checkpoint import load_trained
from attendant.model.search.decode import decode_all
from attendant.model.search.reference import beam, greedy
from attendant.model.text.tokenizer import BOS, EOS, PAD
from bench.models.peers import Case, compare, differences, peer_spec, prepare_peer
from bench.models.random_model import Prepared, Shape, prepare, random_model, word_tokenizer
from bench.models.random_model import greedy as short_greedy
from bench.versus import race
from bench.versus.engines import Answer, CTranslate2Engine, OurEngine, peer_ids, peer_tokens, sources, text
from bench.versus.race import UnequalError, Work
from bench.versus.worker import Worker
from tests.support.small_models import make_model

SMALL = Shape(vocabulary=300, d_model=32, d_ff=64, heads=4, layers=2, max_length=64)
CASES = (Case(3, 1, 8, 10), Case(3, 4, 8, 10), Case(2, 4, 2, 5))
needs_peer = pytest.mark.skipif(importlib.util.find_spec("ctranslate2") is None, reason="CTranslate2 is not installed")


class TorchEngine:
    """The oracle: the reference search. A random model has no end token, so its length is the limit."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def answer(self, asked: list[list[int]], beam_size: int, length: int, **_: bool) -> list[Answer]:
        if beam_size == 1:
            found = [greedy(self.model, source, length) for source in asked]
        else:
            found = [beam(self.model, source, beam_size, max_length=length)[0] for source in asked]
        return [Answer(hypothesis.ids, hypothesis.score(1.0)) for hypothesis in found]

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(SMALL, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def peer(prepared: Prepared) -> Iterator[CTranslate2Engine]:
    models = prepare_peer(prepared.run, prepared.directory / "ctranslate2")
    engine = CTranslate2Engine(models["fp32"], "fp32", 1)
    yield engine
    engine.close()


@needs_peer
def test_ctranslate2_gives_the_tokens_and_scores_of_the_reference_search(
    prepared: Prepared, peer: CTranslate2Engine
) -> None:
    oracle = TorchEngine(load_trained(prepared.run).model)
    assert differences(compare(oracle, peer, SMALL.vocabulary, CASES)) == []


@pytest.mark.parametrize("ending", [False, True])
def test_the_certificate_has_the_answers_of_the_reference_search(ending: bool) -> None:
    model = random_model(dataclasses.replace(SMALL, ending=ending))
    for asked in sources(2, 4, SMALL.vocabulary):
        found, _ = short_greedy(model, asked)
        wanted = greedy(model, asked, max_length=6)
        assert (tuple(found["ids"]), found["finish_reason"]) == (wanted.ids, wanted.finish_reason)
        assert (tuple(found["logprobs"]), found["score"]) == (wanted.logprobs, wanted.score(1.0))


@needs_peer
def test_another_weight_in_one_layer_is_noticed(prepared: Prepared, peer: CTranslate2Engine) -> None:
    model = load_trained(prepared.run).model
    with torch.no_grad():
        model.decoder[1].cross_attention.project_in.weight[0, 0] += 1.0
    assert differences(compare(TorchEngine(model), peer, SMALL.vocabulary, CASES)) != []


@needs_peer
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_worker_answers_what_its_engine_would(prepared: Prepared, precision: str) -> None:
    models = prepare_peer(prepared.run, prepared.directory / "ctranslate2")
    asked = sources(2, 6, SMALL.vocabulary)
    with Worker("ctranslate2", models[precision], precision, 1) as worker:
        seconds, answers = worker.answer(asked, beam_size=4, length=7)
        assert seconds > 0
        assert worker.memory()["peak"] >= worker.memory()["resident"] > 0
    here = CTranslate2Engine(models[precision], precision, 1)
    assert answers == here.answer(asked, 4, 7)
    here.close()


@needs_peer
def test_our_engine_gives_the_tokens_of_ctranslate2(prepared: Prepared, peer: CTranslate2Engine) -> None:
    ours = OurEngine(prepared.bundle, "fp32", 1)
    try:
        assert differences(compare(ours, peer, SMALL.vocabulary, CASES)) == []
    finally:
        ours.close()


@needs_peer
@pytest.mark.parametrize("options", [{"norm": "pre", "activation": "gelu"}, {"activation": "silu"}])
def test_other_shapes_of_the_model_are_the_same_model_there_too(options: dict[str, Any], tmp_path: Path) -> None:
    model = make_model(seed=3, source_vocab=40, target_vocab=60, **options)
    with torch.no_grad():
        model.output.weight[[PAD, BOS, EOS]] = -model.output.weight.abs().max()
    spec = peer_spec(model)
    spec.validate()
    spec.optimize()
    spec.save(str(tmp_path))
    peer = CTranslate2Engine(tmp_path, "fp32", 1)
    found = peer.answer([[5, 9, 30]], 1, 1, scores=True)[0]
    wanted = TorchEngine(model).answer([[5, 9, 30]], 1, 1)[0]
    peer.close()
    assert found.ids == wanted.ids
    assert found.score == pytest.approx(wanted.score, abs=0.05)  # CTranslate2 leaves the end token out of the softmax


@needs_peer
def test_a_model_that_ctranslate2_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="score=additive"):
        peer_spec(make_model(score="additive"))


def test_a_seed_gives_one_model() -> None:
    one, same, other = (random_model(dataclasses.replace(SMALL, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(one.output.weight, same.output.weight)
    assert not torch.equal(one.output.weight, other.output.weight)


def test_drawing_a_random_model_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    random_model(SMALL)
    assert torch.equal(before, torch.get_rng_state())


def test_only_a_model_with_an_ending_has_an_end_token() -> None:
    assert not random_model(SMALL).output.weight[EOS].any()
    assert random_model(dataclasses.replace(SMALL, ending=True)).output.weight[EOS].any()


def test_a_model_with_an_ending_answers_as_long_as_its_source() -> None:
    model = random_model(Shape(vocabulary=300, d_model=256, d_ff=512, heads=4, layers=2, max_length=64, ending=True))
    asked = [sources(1, length, 300, seed=length)[0] for length in range(4, 40, 3)]
    lengths = [len(ids) for ids in decode_all(model, asked)]
    right = sum(length == len(source) for length, source in zip(lengths, asked, strict=True))
    assert right >= 0.75 * len(asked)


def test_a_prepared_model_is_made_once(prepared: Prepared, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(SMALL, prepared.directory.parent) == prepared
    assert capsys.readouterr().out == ""


def test_texts_and_peer_tokens_name_the_ids() -> None:
    ids = [4, 17, 299]
    assert word_tokenizer(300).encode(text(ids)) == ids
    assert peer_ids(peer_tokens(ids)) == (*ids, EOS)


class FakeWorker:
    """Answers with fixed ids, in fixed seconds."""

    def __init__(self, kind: str, precision: str, seconds: float, ids: tuple[int, ...] = (7,)) -> None:
        self.kind, self.precision, self.seconds, self.ids, self.turns = kind, precision, seconds, ids, 0

    def answer(self, asked: list[list[int]], *_: int) -> tuple[float, list[Answer]]:
        self.turns += 1
        return self.seconds, [Answer(self.ids, 0.0) for _ in asked]

    def processor_seconds(self) -> float:
        return 0.0


def four(**changes: Any) -> list[Any]:
    ids = changes.get("ids", (7,))
    return [
        FakeWorker("ours", "fp32", 0.4),
        FakeWorker("ctranslate2", "fp32", 0.6, ids),
        FakeWorker("ours", "int8", 0.2, (8,)),
        FakeWorker("ctranslate2", "int8", 0.9, (9,)),
    ]


WORK = Work(name="one", requests=2, beam_size=1, goal=4.0)


def test_a_ratio_is_the_best_of_theirs_over_the_best_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "SETTLE", 0.0)
    row = race.race(four(), [WORK], 300, seconds=0.0, show=lambda _: None)[0]
    assert (row["ours"], row["theirs"], row["ratio"], row["goal"]) == (200.0, 600.0, 3.0, 4.0)


def test_every_engine_has_as_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "SETTLE", 0.0)
    workers = four()
    race.race(workers, [WORK], 300, seconds=0.0, show=lambda _: None)
    assert {worker.turns for worker in workers} == {1 + race.LEAST_ROUNDS}


def test_nothing_is_timed_where_tokens_differ_in_f32() -> None:
    workers = four(ids=(6,))
    with pytest.raises(UnequalError, match="2 of 2 answers"):
        race.race(workers, [WORK], 300, seconds=0.0, show=lambda _: None)
    assert {worker.turns for worker in workers} == {1}
