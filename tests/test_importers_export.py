"""An imported model through export and service, and what export says where there are no samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attendant import main
from export.bundle import read_bundle
from export.runner import GraphStepper, Runner
from model import checkpoint
from model.decode import decode_all, decode_sources
from tests.foreign import OTHER, WORDS, sentences
from tests.test_importers_marian import make_marian


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export")
    make_marian(path / "opus")
    pairs = zip(sentences(40), sentences(40, OTHER), strict=True)
    (path / "samples.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    assert main(["import", "marian", str(path / "opus"), "--out", str(path / "run"), "--target-language", "fra"]) == 0
    return path


@pytest.fixture(scope="module")
def bundle(imported: Path) -> Path:
    out = imported / "bundle"
    given = ["--precision", "fp32", "--samples", str(imported / "samples.tsv")]
    assert main(["export", str(imported / "run"), "--out", str(out), *given]) == 0
    return out


def test_an_imported_model_is_exported_and_decodes_as_torch_does(imported: Path, bundle: Path) -> None:
    run, samples = imported / "run", imported / "samples.tsv"
    trained, read = checkpoint.load_trained(run), read_bundle(bundle)
    sources = trained.source.encode_batch(sentences(200, WORDS, seed=7))
    runner = Runner(read.variants["fp32"].graphs, read.sizes)
    assert decode_sources(GraphStepper(runner), sources) == decode_all(trained.model, sources)
    assert list(read.variants) == ["fp32"]
    assert read.generation["beam_size"] == 6
    assert read.languages["target_language"] == "fra"
    assert main(["verify", str(bundle), "--checkpoint", str(run), "--samples", str(samples)]) == 0


def test_the_service_decodes_an_imported_bundle(
    imported: Path, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = checkpoint.load_trained(imported / "run")
    texts = sentences(5, WORDS, seed=3)
    longest = read_bundle(bundle).limits["max_target_length"] - 1  # at the limit the end token is forced
    wanted = [ids[:longest] for ids in decode_all(trained.model, trained.source.encode_batch(texts))]
    assert main(["generate", "--bundle", str(bundle), "--precision", "fp32", "--beam-size", "1", *texts]) == 0
    limit = trained.config.max_length - 1  # the last token is the end token, which this model forces
    assert capsys.readouterr().out.splitlines()[-5:] == [trained.target.decode(ids[:limit]) for ids in wanted]


def test_a_text_of_nothing_is_refused_though_the_tokenizer_adds_a_language(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--bundle", str(bundle), "--precision", "fp32", "", "  ", "the"]) == 1
    said = capsys.readouterr()
    assert said.err.count("is empty; give a text.") == 2
    assert [bool(line) for line in said.out.splitlines()[-3:]] == [False, False, True]


def test_without_samples_export_says_what_it_did_instead(imported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = imported / "random"
    assert main(["export", str(imported / "run"), "--out", str(out), "--precision", "fp32"]) == 0
    assert "sources of random tokens" in capsys.readouterr().out
    assert len(json.loads((out / "manifest.json").read_text(encoding="utf-8"))["certificate"]["samples"]) == 16


def test_int8_that_drifts_is_refused_with_advice(imported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Random weights are nothing that 8 bits can hold."""
    out = imported / "int8"
    assert main(["export", str(imported / "run"), "--out", str(out), "--samples", str(imported / "samples.tsv")]) == 1
    said = capsys.readouterr().err
    assert "int8 decoding" in said
    assert "--precision fp32 writes the f32 variant alone" in said
    assert not out.exists()
