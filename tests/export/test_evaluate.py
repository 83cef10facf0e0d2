"""A bundle is scored as its run is."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
import torch

from attendant.cli import Parser, UsageError
from attendant.export.bundle import BundleError, Variant, read_bundle
from attendant.export.evaluate import EvaluateUsageError, choose_precision, evaluate, evaluate_bundle
from attendant.export.runner import GraphStepper, Runner
from attendant.model.checkpoint import load_trained
from attendant.model.errors import ConfigError, DataError, UserError
from attendant.model.evaluation.evaluate import evaluate_run
from attendant.model.search.decode import decode_all, decode_sources
from attendant.model.threads import processors
from tests.support.exporting import WORDS, export_unproven, write_run
from tests.support.fake_engine import make_bundle

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tsv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.tsv"
    path.write_text("".join(f"{word}\t{' '.join(word[::-1].upper())}\n" for word in WORDS), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(tsv: Path) -> Path:
    return write_run(tsv.parent / "run")


@pytest.fixture(scope="module")
def bundle(run: Path) -> Path:
    return export_unproven(run, run.parent / "bundle", ("fp32",))


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
    blocked = "import sys; sys.modules['torch'] = None; import attendant.export.runner, attendant.model.search.decode"
    subprocess.run([sys.executable, "-c", blocked], check=True, cwd=Path(__file__).parents[2])


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
    with pytest.raises(DataError, match="has 12 tokens, and the model reads 11"):
        evaluated(bundle, "--data", tmp_path / "long.tsv")


def test_an_ignore_that_is_no_regular_expression_is_refused(bundle: Path, tsv: Path) -> None:
    with pytest.raises(ConfigError, match="--ignore takes a regular expression"):
        evaluated(bundle, "--data", tsv, "--ignore", "[")


def test_wrong_answers_are_shown_with_their_references_and_all_are_written(
    bundle: Path, run: Path, tsv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for model in (run, bundle):
        evaluated(model, "--data", tsv, "--errors", "3", "--predictions", tmp_path / f"{model.name}.jsonl")
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    lines = [json.loads(line) for line in (tmp_path / "bundle.jsonl").read_text("utf-8").splitlines()]
    assert [line["source"] for line in lines] == WORDS
    wrong = [line for line in lines if line["output"] not in line["references"]]
    assert [line for line in lines if not line["right"]] == wrong
    assert f"3 of {len(wrong)} wrong answers:" in printed[0]
    shown = [line for line in wrong if f"  {line['source']!r}: {line['output']!r}, not " in printed[0]]
    assert len(shown) == 3


def test_what_the_service_refuses_has_no_answer_and_counts_as_wrong(
    bundle: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test.tsv").write_text("afk\tK F A\naZk\tK F A\n", encoding="utf-8")
    for model in (run, bundle):
        evaluated(model, "--data", tmp_path / "test.tsv", "--json", tmp_path / "r.json", "--errors", "2")
        report = json.loads((tmp_path / "r.json").read_text("utf-8"))
        assert report["refused"] == {"sources": 1, "lacking": "'Z'"}
        printed = capsys.readouterr().out
        assert "1 sources have what the vocabulary lacks: 'Z'. The service refuses them" in printed
        assert "'aZk': (refused), not 'K F A'" in printed
        evaluated(model, "--data", tmp_path / "test.tsv", "--allow-unknown")
        assert "refuses" not in capsys.readouterr().out


@pytest.mark.parametrize("number", ["1", "2"])
def test_the_number_of_threads_can_be_given(
    number: str, bundle: Path, run: Path, tsv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, used = torch.get_num_threads(), set()

    def decode(model: Any, sources: list[list[int]], *search: Any, **limits: Any) -> list[list[int]]:
        used.add(torch.get_num_threads())
        return decode_all(model, sources, *search, **limits)

    monkeypatch.setattr("attendant.model.search.decode.decode_all", decode)
    evaluated(run, "--data", tsv, "--threads", number)
    assert used == {int(number)}
    assert torch.get_num_threads() == before
    evaluated(bundle, "--data", tsv, "--threads", number)


def test_the_number_of_threads_is_measured_where_there_is_much_to_decode(
    bundle: Path, run: Path, tsv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attendant.model.evaluation.evaluate.WORTH_MEASURING", 1)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    tried = []
    monkeypatch.setattr(
        "attendant.export.evaluate.fastest", lambda seconds_with, most: tried.append(most) or (1, seconds_with(1))
    )
    monkeypatch.setattr(
        "attendant.model.threads.set_torch_threads", lambda number, work: tried.append(number) or work()
    )
    evaluated(bundle, "--data", tsv)
    evaluated(run, "--data", tsv)
    assert tried == [processors(), 0]


BLOCKED = "import sys\nfor name in {!r}: sys.modules[name] = None\nimport attendant\nsys.exit(attendant.main({!r}))"


def test_a_bundle_is_evaluated_without_torch(bundle: Path, tsv: Path) -> None:
    command = ["evaluate", str(bundle), "--data", str(tsv), "--beam-size", "2", "--errors", "1"]
    heavy = ("torch", "onnx", "safetensors", "sacrebleu", "matplotlib")
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(heavy, command)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "sequence_error_rate" in done.stdout


def test_bad_usage_is_exit_2(tmp_path: Path) -> None:
    with pytest.raises(EvaluateUsageError, match="--beam-size takes a whole number from 1, not 0") as caught:
        evaluated(tmp_path, "--data", "x", "--beam-size", "0")
    assert caught.value.exit_code == 2
    with pytest.raises(EvaluateUsageError, match="--length-penalty takes a number, not nan"):
        evaluated(tmp_path, "--data", "x", "--length-penalty", "nan")
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
