"""A bundle is scored as its run is."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest

from attendant import Parser, UsageError
from export import convert
from export.bundle import BundleError, Variant, read_bundle
from export.evaluate import EvaluateUsageError, choose_precision, evaluate, evaluate_bundle
from export.runner import GraphStepper, Runner
from model import checkpoint
from model.checkpoint import load_trained
from model.decode import decode_all, decode_sources
from model.errors import ConfigError, UserError
from model.evaluate import evaluate_run
from model.tokenizer import learn
from tests.conftest import make_model
from tests.fake_engine import make_bundle

WORDS = [f"{a}{b}{c}" for a in "abc" for b in "fg" for c in "kl"]


@pytest.fixture(scope="module")
def tsv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.tsv"
    path.write_text("".join(f"{word}\t{' '.join(word[::-1].upper())}\n" for word in WORDS), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(tsv: Path) -> Path:
    """A released model that has learnt nothing, its weights large so that its answers are not all alike."""
    directory = tsv.parent / "run"
    directory.mkdir()
    source, target = learn("chars", WORDS), learn("words", [" ".join("ABCFGKL")])
    model = make_model(source_vocab=source.size, target_vocab=target.size, max_length=12)
    checkpoint.write_json({"model": dataclasses.asdict(model.config)}, directory / checkpoint.CONFIG)
    weights = {name: weight * 3 for name, weight in checkpoint.weights_of(model).items()}
    checkpoint.save_weights(weights, directory / checkpoint.MODEL)
    source.save(directory / checkpoint.SOURCE_TOKENIZER)
    target.save(directory / checkpoint.TARGET_TOKENIZER)
    (directory / checkpoint.SAMPLES).write_bytes(tsv.read_bytes())
    return directory


@pytest.fixture(scope="module")
def bundle(run: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convert, "verify", lambda *_: [])  # its proof is tested elsewhere, and slow
        convert.convert(run, run.parent / "bundle", "small", variants=("fp32",))
    return run.parent / "bundle"


def evaluated(*arguments: object) -> None:
    evaluate(Parser(prog="attendant evaluate"), [str(a) for a in arguments])


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_bundle_scores_as_its_run_does(beam_size: int, bundle: Path, run: Path, tsv: Path) -> None:
    mine = evaluate_bundle(read_bundle(bundle), "fp32", tsv, beam_size, 0.7, "[KL]")
    theirs = evaluate_run(load_trained(run), tsv, beam_size, 0.7, "[KL]")
    assert mine == theirs | {"precision": "fp32"}


def test_sources_of_all_lengths_keep_their_order(bundle: Path, run: Path) -> None:
    sources = [[4 + (i * k) % 6 for k in range(1 + i * 7 % 10)] for i in range(12)]
    graphs = read_bundle(bundle)
    mine = decode_sources(GraphStepper(Runner(graphs.variants["fp32"].graphs, graphs.sizes)), sources, 3, 1.0)
    assert mine == decode_all(load_trained(run).model, sources, 3, 1.0)
    assert len({tuple(ids) for ids in mine}) > 1  # else any order would do


def test_the_search_over_graphs_needs_no_torch() -> None:
    blocked = "import sys; sys.modules['torch'] = None; import export.runner, model.decode"
    subprocess.run([sys.executable, "-c", blocked], check=True, cwd=Path(__file__).parent.parent)


def test_the_command_reports_a_bundle_and_a_run_alike(
    bundle: Path, run: Path, tsv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated(bundle, "--data", tsv, "--precision", "fp32", "--json", tmp_path / "new" / "bundle.json")
    of_bundle = capsys.readouterr().out
    evaluated(run, "--data", tsv, "--json", tmp_path / "run.json")
    assert capsys.readouterr().out == of_bundle
    assert f"{len(WORDS)} sources, greedy" in of_bundle
    report = json.loads((tmp_path / "new" / "bundle.json").read_text(encoding="utf-8"))
    assert report.pop("precision") == "fp32"
    assert report == json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))


def test_int8_is_chosen_where_it_is_there(tmp_path: Path) -> None:
    fake = make_bundle(tmp_path)
    variants = {name: Variant(name, {}, 1.0, {}) for name in ("fp16", "fp32", "int8")}
    assert choose_precision(dataclasses.replace(fake, variants=variants), None) == "int8"
    assert choose_precision(dataclasses.replace(fake, variants=variants), "fp32") == "fp32"
    del variants["int8"]
    assert choose_precision(dataclasses.replace(fake, variants=variants), None) == "fp32"
    del variants["fp32"]
    assert choose_precision(dataclasses.replace(fake, variants=variants), None) == "fp16"


def test_a_precision_that_is_not_there_is_refused(bundle: Path, run: Path, tsv: Path) -> None:
    with pytest.raises(EvaluateUsageError, match=r"--precision takes one of fp32, .* not 'int4'"):
        evaluated(bundle, "--data", tsv, "--precision", "int4")
    with pytest.raises(EvaluateUsageError, match=r"--precision is for a bundle"):
        evaluated(run, "--data", tsv, "--precision", "fp32")


def test_a_source_too_long_for_the_bundle_is_refused(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "long.tsv").write_text("abcabcabcabc\tA\n", encoding="utf-8")
    with pytest.raises(BundleError, match="has 12 tokens, and the model reads 11"):
        evaluated(bundle, "--data", tmp_path / "long.tsv")


def test_an_ignore_that_is_no_regular_expression_is_refused(bundle: Path, tsv: Path) -> None:
    with pytest.raises(ConfigError, match="--ignore takes a regular expression"):
        evaluated(bundle, "--data", tsv, "--ignore", "[")


def test_bad_usage_is_exit_2(tmp_path: Path) -> None:
    with pytest.raises(EvaluateUsageError, match="--beam-size takes a whole number from 1, not 0") as caught:
        evaluated(tmp_path, "--data", "x", "--beam-size", "0")
    assert caught.value.exit_code == 2
    with pytest.raises(UsageError, match="required: RUN_OR_BUNDLE, --data"):
        evaluated()


def test_what_is_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json is not there"):
        evaluated(tmp_path, "--data", "x")


def test_a_spoilt_bundle_is_not_evaluated(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")
    with pytest.raises(BundleError, match=r"manifest\.json has no whole number as its format"):
        evaluated(tmp_path, "--data", "x")


def test_the_parser_is_the_doors(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluate(ArgumentParser(prog="attendant evaluate"), ["--help"])
    assert "--precision" in capsys.readouterr().out
