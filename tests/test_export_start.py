"""What is calibrated, certified and measured is what is served: targets after the model's start tokens."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from export import convert
from export.bundle import Bundle, read_bundle
from export.calibration import observe
from export.certificate import check_answers, longest_answer, make_certificate
from export.compare import check_int8_values
from export.measure import decode
from export.runner import Runner
from export.samples import Samples, calibration_pairs, read_samples
from export.torch_checks import check_calibration, check_defaults
from export.verify import verify
from export.weights import arrays_of
from model import checkpoint, reference
from model.checkpoint import load_trained
from model.decode import decode_all
from service.engine.engine import Engine, EngineSettings
from tests.exporting import WORDS, export_unproven, write_run

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
    invented = calibration_pairs(run, trained)
    sources = [source for source, _ in invented]
    answers = decode_all(trained.model, sources, max_length=trained.config.max_length - 1, start=START)
    assert [target for _, target in invented] == answers
    assert any(len(target) + len(START) == trained.config.max_length - 1 for _, target in invented)  # without end


def test_a_target_that_does_not_fit_after_the_start_tokens_calibrates_nothing(tmp_path: Path) -> None:
    pairs = [(word, "A " * length) for word, length in zip(WORDS, (9, 1, 10, 1, 11, 1), strict=False)]
    run = write_run(tmp_path / "run", pairs)
    assert [len(target) for _, target in calibration_pairs(run, load_trained(run))] == [9, 10, 11]
    with_start(run)
    assert [len(target) for _, target in calibration_pairs(run, load_trained(run))] == [9]


def test_the_ranges_of_an_export_are_those_of_targets_after_the_start_tokens(samples: Samples, bundle: Bundle) -> None:
    variant, trained = bundle.variants["int8"], samples.trained
    assert list(check_calibration(variant, samples)) == []
    found = observe(trained.config, arrays_of(trained.model), [(s, [*START, *t]) for s, t in samples.calibration])
    assert all(found[name].choices()[0].low == values["low"] for name, values in variant.calibration.items())


def test_a_certificate_holds_answers_after_the_start_tokens_with_their_log_probabilities(samples: Samples) -> None:
    trained = samples.trained
    held = make_certificate(trained, WORDS)
    limit = longest_answer(trained)
    for sample in held["samples"]:
        source = sample["source_ids"]
        greedy = reference.greedy(trained.model, source, limit - len(START), tuple(START))
        assert sample["greedy"]["ids"] == [*START, *greedy.ids]
        assert sample["greedy"]["logprobs"][len(START) :] == list(greedy.logprobs)
        for search in ("greedy", "beam"):
            ids, logprobs = sample[search]["ids"], sample[search]["logprobs"]
            assert ids[: len(START)] == START
            assert len(ids) <= limit
            said = [*ids, 3][: len(logprobs)]
            scores = [reference.next_logprobs(trained.model, source, tuple(said[:i])) for i in range(len(said))]
            assert logprobs == pytest.approx(
                [score[token] for score, token in zip(scores, said, strict=True)], abs=1e-5
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
        f"facts: generation is {{'target_prefix': [5]}}, and the checkpoint's {{'target_prefix': {START}}}",
        "facts: languages is {'target_language': 'fra'}, and the checkpoint's {}",
    ]
    swapped = dataclasses.replace(other, variants={})
    assert [problem for problem in verify(swapped, samples) if problem.startswith("facts: ")] == list(
        check_defaults(other, samples)
    )


@pytest.mark.parametrize("plain", [True, False])
def test_int8_answers_after_start_tokens_are_the_references(samples: Samples, bundle: Bundle, plain: bool) -> None:
    variant, model = bundle.variants["int8"], samples.trained.model
    runner = Runner(variant.graphs, bundle.sizes, plain=plain)
    pairs = list(zip(samples.sources, decode(runner, samples)[1], strict=True))
    held = (runner, variant.graphs, model, variant.calibration, not plain, pairs, samples.limit)
    assert list(check_int8_values(*held, START)) == []
    assert any(problem.startswith("decoding: the graph chooses") for problem in check_int8_values(*held))
