"""CTranslate2's directories, converted by CTranslate2 itself and imported back, against its own translator."""

from __future__ import annotations

import json
import re
import struct
import warnings
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import pytest
import torch
import transformers

from attendant import main
from attendant.model import checkpoint
from attendant.model.importers.formats import ctranslate2 as importer
from attendant.model.importers.imported import ImportedModel
from attendant.model.importers.problems import ImportRefusedError
from attendant.model.search.decode import decode_all
from attendant.model.search.reference import next_logprobs
from attendant.model.text.tokenizer import SPECIAL_TOKENS, UNK
from tests.model.importers.test_m2m_bart import SHAPE, save, write_bytes
from tests.model.importers.test_marian import make_marian
from tests.support.foreign import LENGTH, SOURCES, sentences


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Marian as f32 and as int8; its decoder starts from a zero vector, which is the padding's row."""
    path = tmp_path_factory.mktemp("ctranslate2")
    model = make_marian(path / "opus")
    with torch.no_grad():
        model.model.shared.weight[model.config.pad_token_id] = 0
    model.save_pretrained(path / "opus")
    for name, quantization in (("f32", None), ("int8", "int8"), ("int16", "int16")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its tokenizer recommends a package
            converter = ctranslate2.converters.TransformersConverter(str(path / "opus"))
            converter.convert(str(path / name), quantization=quantization)
    return path


def read(path: Path, name: str) -> ImportedModel:
    opus = path / "opus"
    return importer.read(
        path / name, source_sentencepiece=opus / "source.spm", target_sentencepiece=opus / "target.spm"
    )


def tokens_of(imported: ImportedModel, ids: list[int]) -> list[str]:
    names = [imported.target.id_to_token(i).removeprefix("  ") for i in ids]
    names = [re.sub(r"^<language (.*)>$", r">>\1<<", name) for name in names]
    return ["<unk>" if name == SPECIAL_TOKENS[UNK] else name for name in names]


def test_greedy_tokens_and_scores_are_those_of_ctranslate2(converted: Path) -> None:
    imported = read(converted, "f32")
    model, texts = imported.load(), sentences(SOURCES)
    ours = [encoding.ids for encoding in imported.source.encode_batch(texts)]
    translator = ctranslate2.Translator(str(converted / "f32"), compute_type="float32", inter_threads=1)
    pieces = [[*(imported.source.id_to_token(i) for i in ids), "</s>"] for ids in ours]
    theirs = translator.translate_batch(
        pieces, beam_size=1, min_decoding_length=0, max_decoding_length=LENGTH - 1, return_scores=True, length_penalty=0
    )
    found = decode_all(model, ours, max_length=LENGTH - 1)
    assert [tokens_of(imported, ids) for ids in found] == [answer.hypotheses[0] for answer in theirs]
    for source, ids, answer in zip(ours[:20], found, theirs, strict=False):
        scored = [*ids, 3] if len(ids) < LENGTH - 1 else ids
        total = sum(next_logprobs(model, source, tuple(scored[:i]))[token] for i, token in enumerate(scored))
        assert total == pytest.approx(answer.scores[0], abs=1e-4 * len(scored))


@pytest.mark.parametrize(("name", "distance"), [("int8", 1 / 127), ("int16", 1 / 1024)])
def test_integer_weights_are_turned_back_and_it_is_said(converted: Path, name: str, distance: float) -> None:
    exact, rounded = read(converted, "f32"), read(converted, name)
    assert name in rounded.notes[0]
    for key, weight in exact.weights.items():
        most = weight.abs().max() if "output.bias" not in key else torch.tensor(1.0)
        assert (rounded.weights[key] - weight).abs().max() <= 0.51 * distance * most + 1e-6


def test_what_does_not_fit_is_said_at_once(converted: Path, tmp_path: Path) -> None:
    for file in (converted / "f32").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"layer_norm_epsilon": 1e-6, "decoder_start_token": None, "unk_token": "<none>"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ImportRefusedError) as refused:
        importer.read(tmp_path)
    for part in ("layer_norm_epsilon is 1e-06", "decoder_start_token is null", "lacks '<none>'"):
        assert part in str(refused.value)


def test_a_vocabulary_of_many_languages_is_refused(converted: Path, tmp_path: Path) -> None:
    for file in (converted / "f32").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (vocabulary,) = tmp_path.glob("shared_vocabulary.json")
    tokens = json.loads(vocabulary.read_text())
    codes = [f"{a}{b}c_Latn" for a in "abcd" for b in "efg"]
    tokens[-len(codes) :] = codes
    vocabulary.write_text(json.dumps(tokens))
    with pytest.raises(ImportRefusedError, match="its vocabulary has 12 languages"):
        importer.read(tmp_path)


def test_a_target_language_is_a_token_before_the_source(converted: Path, tmp_path: Path) -> None:
    opus, out = converted / "opus", tmp_path / "run"
    spm = ["--source-sentencepiece", str(opus / "source.spm"), "--target-sentencepiece", str(opus / "target.spm")]
    command = ["import", "ctranslate2", str(converted / "f32"), "--out", str(out), *spm]
    assert main([*command, "--target-language", "fra"]) == 0
    trained, plain = checkpoint.load_trained(out), read(converted, "f32")
    languages = checkpoint.read_config(out)["languages"]
    assert languages["target_language"] == "fra"
    assert languages["source_prefix_by_target"].keys() == {"fra", "deu"}
    assert plain.languages == {"source_prefix_by_target": languages["source_prefix_by_target"]}
    assert any("2 target languages; --target-language sets one" in note for note in plain.notes)
    translator = ctranslate2.Translator(str(converted / "f32"), compute_type="float32", inter_threads=1)
    for text in sentences(20):
        ids = plain.source.encode(text).ids
        assert trained.source.encode(text) == [*languages["source_prefix_by_target"]["fra"], *ids]
        pieces = [">>fra<<", *(plain.source.id_to_token(i) for i in ids), "</s>"]
        limits = {"min_decoding_length": 0, "max_decoding_length": LENGTH - 1}
        [answer] = translator.translate_batch([pieces], beam_size=1, length_penalty=0, **limits)
        [found] = decode_all(trained.model, [trained.source.encode(text)], max_length=LENGTH - 1)
        assert tokens_of(plain, found) == answer.hypotheses[0]


def test_a_target_language_that_the_model_lacks_is_refused(converted: Path) -> None:
    with pytest.raises(ImportRefusedError, match="--target-language takes one of deu, fra, not 'xx'"):
        importer.read(converted / "f32", target_language="xx")


def test_a_converted_bart_is_refused_with_the_format_to_import(tmp_path: Path) -> None:
    ids = write_bytes(tmp_path)
    config = transformers.BartConfig(vocab_size=len(ids), normalize_before=False, **SHAPE)
    save(tmp_path, transformers.BartForConditionalGeneration(config))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BartTokenizer"}))
    ctranslate2.converters.TransformersConverter(str(tmp_path)).convert(str(tmp_path / "converted"))
    with pytest.raises(ImportRefusedError, match="attendant import bart"):
        importer.read(tmp_path / "converted")


def test_other_specs_are_refused_by_name(tmp_path: Path) -> None:
    spec = ctranslate2.specs.WhisperSpec(1, 2, 1, 2)
    (tmp_path / "shared_vocabulary.json").write_text('["a"]')
    name = spec.name.encode() + b"\0"
    content = struct.pack("<IH", 6, len(name)) + name + struct.pack("<III", 3, 0, 0)
    (tmp_path / "model.bin").write_bytes(content)
    with pytest.raises(ImportRefusedError, match="holds a WhisperSpec"):
        importer.read(tmp_path)


def text(value: str) -> bytes:
    return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"


@pytest.mark.parametrize(
    ("arrays", "aliases", "why"),
    [
        ([("w", (0, *[2**32 - 1] * 7), 0, b"")], [], "model.bin is no whole model of CTranslate2: w has 0 bytes"),
        ([("weight", (), 1, b"1"), ("weight_scale", (), 0, b"1234")], [], "weight_scale does not fit its weight"),
        (
            [("w", (100, 100), 0, bytes(40_000))],
            [(f"a{i}", "w") for i in range(400)],
            "model.bin: its weights describe 16,040,000 bytes, of which 40,000 are stored",
        ),
    ],
    ids=["strides", "scale of a number", "aliases"],
)
def test_sizes_that_a_small_file_makes_up_are_refused_in_a_sentence(
    tmp_path: Path, arrays: list[Any], aliases: list[tuple[str, str]], why: str
) -> None:
    content = struct.pack("<I", 6) + text("TransformerSpec") + struct.pack("<II", 7, len(arrays))
    for name, shape, kind, data in arrays:
        content += text(name) + struct.pack(f"<B{len(shape)}IBI", len(shape), *shape, kind, len(data)) + data
    content += struct.pack("<I", len(aliases)) + b"".join(text(alias) + text(name) for alias, name in aliases)
    (tmp_path / "model.bin").write_bytes(content)
    (tmp_path / "shared_vocabulary.json").write_text('["a"]')
    with pytest.raises(ImportRefusedError, match=why):
        importer.read(tmp_path)


def test_damaged_files_are_refused_in_a_sentence_and_nothing_is_written(
    converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    for file in (converted / "f32").iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    whole = (directory / "model.bin").read_bytes()
    rng = np.random.default_rng(0)
    huge = whole.replace(struct.pack("<I", 53), struct.pack("<I", 2**31), 3)
    damaged: list[Any] = [b"", b"\0" * 64, whole[:5], whole[: len(whole) // 2], whole[:-3], huge]
    damaged += [whole[:n] + rng.bytes(12) + whole[n + 12 :] for n in (4, 30, 60, 100)]
    for content in damaged:
        (directory / "model.bin").write_bytes(content)
        assert main(["import", "ctranslate2", str(directory), "--out", str(tmp_path / "run")]) == 1
        said = capsys.readouterr().err
        assert "cannot be imported, and nothing was written" in said
        assert "Traceback" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]
