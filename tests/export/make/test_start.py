"""What is certified and measured is what is served: targets after the model's start tokens."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from attendant.export.bundle import Bundle, read_bundle
from attendant.export.make import convert
from attendant.export.make.certificate import check_answers, longest_answer, make_certificate
from attendant.export.make.measure import decode
from attendant.export.make.samples import Samples, read_samples
from attendant.export.runner import DEFINITIONS, PLAIN, Runner
from attendant.export.verify.compare import check_int8_values
from attendant.export.verify.torch_checks import check_defaults
from attendant.export.verify.verify import verify
from attendant.model import checkpoint
from attendant.model.checkpoint import load_trained
from attendant.model.search import reference
from attendant.model.search.decode import decode_all
from attendant.service.engine.engine import Engine, EngineSettings
from tests.support.exporting import WORDS, export_unproven, write_run

START = [6, 9]  # a language, say


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_start(write_run(tmp_path_factory.mktemp("runs") / "run"))


def with_start(run: Path) -> Path:
    held = checkpoint.read_config(run)
    checkpoint.write_json(held | {"generation": {"target_prefix": START}}, run / checkpoint.CONFIG)
    return run


@pytest.fixture(scope="module")
def samples(run: Path) -> Samples:
    return read_samples(run, load_trained(run))


@pytest.fixture(scope="module")
def bundle(run: Path) -> Bundle:
    return read_bundle(export_unproven(run, run.parent / "bundle"))


def test_torch_and_the_graphs_answer_after_the_start_tokens(samples: Samples, bundle: Bundle) -> None:
    model, sources = samples.trained.model, samples.sources
    found = decode(Runner(bundle.variants["fp32"].graphs, bundle.sizes), samples)
    for beam_size in (1, 4):
        wanted = decode_all(model, sources, beam_size, max_length=samples.limit, start=START)
        assert samples.torch_answers(beam_size) == found[beam_size] == wanted
        assert wanted != decode_all(model, sources, beam_size, max_length=samples.limit)


def test_invented_targets_are_the_answers_after_the_start_tokens(tmp_path: Path) -> None:
    run = with_start(write_run(tmp_path / "run"))
    (run / checkpoint.SAMPLES).unlink()
    trained = load_trained(run)
    invented = read_samples(run, trained).pairs
    sources = [source for source, _ in invented]
    answers = decode_all(trained.model, sources, max_length=trained.config.max_length - 1, start=START)
    assert [target for _, target in invented] == answers
    assert any(len(target) + len(START) == trained.config.max_length - 1 for _, target in invented)  # without end


def test_a_certificate_holds_answers_after_the_start_tokens_with_their_log_probabilities(samples: Samples) -> None:
    trained = samples.trained
    held = make_certificate(trained, WORDS)
    limit = longest_answer(trained)
    for sample in held["samples"]:
        source = sample["source_ids"]
        greedy = reference.greedy(trained.model, source, limit - len(START), tuple(START))
        assert sample["greedy"]["ids"] == [*START, *greedy.ids]
        assert sample["greedy"]["logprobs"][len(START) :] == pytest.approx(list(greedy.logprobs), abs=1e-4)
        for search in ("greedy", "beam"):
            ids, logprobs = sample[search]["ids"], sample[search]["logprobs"]
            assert ids[: len(START)] == START
            assert len(ids) <= limit
            targets = [*ids, 3][: len(logprobs)]
            scores = [reference.next_logprobs(trained.model, source, tuple(targets[:i])) for i in range(len(targets))]
            assert logprobs == pytest.approx(
                [score[token] for score, token in zip(scores, targets, strict=True)], abs=1e-4
            )
        [answer] = decode_all(trained.model, [source], 4, max_length=limit, start=START)
        assert len(answer) == len(sample["beam"]["ids"]) - len(START)
    assert list(check_answers(held, trained)) == []


def test_a_certificate_of_answers_without_the_start_tokens_is_a_problem(samples: Samples) -> None:
    held = make_certificate(samples.trained, WORDS)
    held["samples"][0]["greedy"]["ids"] = held["samples"][0]["greedy"]["ids"][len(START) :]
    [problem] = check_answers(held, samples.trained)
    assert problem.startswith("greedy of sample 0, ")


def test_an_export_with_start_tokens_proves_itself_and_is_served(run: Path, samples: Samples, tmp_path: Path) -> None:
    bundle = convert.convert(run, tmp_path / "bundle", "small", ("fp32",))
    assert bundle.generation["target_prefix"] == START
    assert verify(bundle, samples) == []
    engine = Engine(bundle, EngineSettings(precision="fp32", threads=1))
    assert engine.description.certificate.drift <= bundle.variants["fp32"].tolerance


def test_generation_and_languages_that_are_not_the_checkpoints_are_found(samples: Samples, bundle: Bundle) -> None:
    assert list(check_defaults(bundle, samples)) == []
    other = dataclasses.replace(bundle, generation={"target_prefix": [5]}, languages={"target_language": "fra"})
    assert list(check_defaults(other, samples)) == [
        f"facts: generation is \"{{'target_prefix': [5]}}\", and the checkpoint's \"{{'target_prefix': {START}}}\"",
        "facts: languages is \"{'target_language': 'fra'}\", and the checkpoint's '{}'",
    ]
    swapped = dataclasses.replace(other, variants={})
    assert [problem for problem in verify(swapped, samples) if problem.startswith("facts: ")] == list(
        check_defaults(other, samples)
    )


@pytest.mark.parametrize("way", [PLAIN, DEFINITIONS])
def test_int8_answers_after_start_tokens_are_the_references(samples: Samples, bundle: Bundle, way: str) -> None:
    variant, model = bundle.variants["int8"], samples.trained.model
    runner = Runner(variant.graphs, bundle.sizes, way)
    pairs = list(zip(samples.sources, decode(runner, samples)[1], strict=True))
    held = (runner, variant.graphs, model, pairs, samples.limit)
    assert list(check_int8_values(*held, START)) == []
    assert any(problem.startswith("decoding: the graph chooses") for problem in check_int8_values(*held))
