"""An imported model through export and service, and what export says where there are no samples."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models

from attendant import main
from attendant.export.bundle import read_bundle
from attendant.export.make.samples import read_samples
from attendant.export.runner import GraphStepper, Runner
from attendant.export.verify.torch_checks import check_origin
from attendant.model import checkpoint
from attendant.model.errors import ConfigError
from attendant.model.importers.formats import marian
from attendant.model.importers.imported import ImportedModel
from attendant.model.search.decode import decode_all, decode_sources
from attendant.model.text.tokenizer import learn
from attendant.model.transformer import Transformer
from attendant.service.engine.engine import examples_of
from tests.model.importers.test_marian import make_marian
from tests.support.foreign import OTHER, WORDS, sentences
from tests.support.small_models import make_model


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
    assert read.generation["allow_unknown"] is True  # it reads with SentencePiece
    assert read.languages["target_language"] == "fra"
    assert main(["verify", str(bundle), "--checkpoint", str(run), "--samples", str(samples)]) == 0


def test_a_model_that_reads_with_sentencepiece_takes_any_text(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"{sentences(1)[0]} 🙂"
    command = ["generate", "--bundle", str(bundle), "--precision", "fp32", "--beam-size", "1"]
    assert main([*command, text]) == 0
    assert capsys.readouterr().out.strip()
    assert main([*command, "--allow-unknown", "false", text]) == 1
    assert "vocabulary lacks: '🙂'" in capsys.readouterr().err


def test_a_model_that_reads_words_refuses_what_it_does_not_know(imported: Path) -> None:
    model = marian.read(imported / "opus")
    assert model.is_sentencepiece
    model.source = learn("words", WORDS)._backend
    model.write(imported / "words")
    assert "allow_unknown" not in checkpoint.read_config(imported / "words")["generation"]


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
    assert read_bundle(out).examples == ()
    assert "sources of random tokens" in capsys.readouterr().out
    assert len(json.loads((out / "manifest.json").read_text(encoding="utf-8"))["certificate"]["samples"]) == 16


def test_random_tokens_are_no_examples(imported: Path, bundle: Path) -> None:
    real = read_bundle(bundle)
    assert examples_of(real)[0] in sentences(40)
    trained = checkpoint.load_trained(imported / "run")
    invented = read_samples(imported / "run", trained)
    assert invented.invented
    assert not read_samples(imported / "run", trained, imported / "samples.tsv").invented
    assert [problem for problem in check_origin(real, invented) if "random tokens" in problem]
    without = dataclasses.replace(real, examples=())
    assert examples_of(without) == ()
    assert list(check_origin(without, invented)) == []


def export_both(imported: Path, out: Path, *flags: str) -> int:
    """Random weights are nothing that 8 bits can hold."""
    given = ["--samples", str(imported / "samples.tsv"), *flags]
    return int(main(["export", str(imported / "run"), "--out", str(out), *given]))


def test_where_only_int8_drifts_f32_is_written_with_a_warning(
    imported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = imported / "left"
    assert export_both(imported, out) == 0
    said = capsys.readouterr()
    assert "warning: int8 is not the model closely enough, so it was left out:\nint8 " in said.err
    assert "--require int8" in said.err
    assert f"{out}: fp32, " in said.out
    assert max(map(len, said.err.splitlines())) < 400
    assert list(read_bundle(out).variants) == ["fp32"]
    assert not (out / "int8").exists()
    assert main(["verify", str(out)]) == 0


def test_int8_that_drifts_is_refused_where_it_is_required(
    imported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attendant.export.make.convert.verify", lambda *_: ["int8 decoding: something is off"])
    out = imported / "refused"
    assert export_both(imported, out, "--require", "int8") == 1
    said = capsys.readouterr().err
    assert "int8 decoding: something is off" in said
    assert "--precision fp32 writes the f32 variant alone" in said
    assert not out.exists()


def test_a_precision_that_is_required_and_not_written_is_bad_usage(
    imported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export_both(imported, imported / "none", "--require", "int8", "--precision", "fp32") == 2
    assert "--require int8 needs --precision int8 too" in capsys.readouterr().err


def as_imported(model: Transformer, **generation: Any) -> ImportedModel:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}))
    return ImportedModel(model.config, checkpoint.weights_of(model), tokenizer, tokenizer, {}, generation)


def test_an_imported_model_holds_its_weights_once() -> None:
    model = make_model()
    found = as_imported(model).load()
    for name, weight in checkpoint.weights_of(found).items():
        assert weight.data_ptr() == dict(model.named_parameters())[name].data_ptr()


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_a_model_of_fewer_positions_answers_the_same(positions: str) -> None:
    whole = make_model(max_length=40, positions=positions)
    found = as_imported(whole, max_length=30, min_length=2)
    found.keep_positions(12)
    assert (found.config.max_length, found.generation) == (12, {"max_length": 12, "min_length": 2})
    source, target = torch.full((1, 12), 5), torch.full((1, 12), 6)
    with torch.inference_mode():
        assert torch.equal(found.load()(source, target), whole(source, target))


@pytest.mark.parametrize("count", [7, 41])
def test_positions_that_the_model_has_not_are_refused(count: int) -> None:
    with pytest.raises(ConfigError, match=rf"--max-length takes 8 to 40, .* not {count}\."):
        as_imported(make_model(max_length=40)).keep_positions(count)
