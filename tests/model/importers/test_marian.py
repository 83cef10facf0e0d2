"""Hugging Face's Marian against its own library: ids, tokens and log-probabilities."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sentencepiece
import torch
import transformers

from attendant import main
from attendant.export.bundle import read_bundle
from attendant.export.make.convert import convert
from attendant.model.importers.formats import marian
from attendant.model.importers.problems import ImportRefusedError
from attendant.model.text.tokenizer import UNK
from attendant.service.engine.engine import Engine, EngineSettings
from attendant.service.requests.planning import plan_generate
from attendant.service.requests.schemas import GenerateRequest
from attendant.service.requests.served import ServedModel
from attendant.service.settings import Settings
from tests.support.foreign import (
    LENGTH,
    OTHER,
    SOURCES,
    WORDS,
    check_against,
    names_to_foreign,
    randomize,
    sentences,
    train_spm,
)

SHAPE = {
    "d_model": 32,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "max_position_embeddings": LENGTH,
    "activation_function": "swish",
    "scale_embedding": True,
}
LANGUAGES = (">>fra<<", ">>deu<<")


def make_marian(path: Path, pickled: bool = False) -> transformers.MarianMTModel:
    """A directory as OPUS-MT has it: one vocabulary for both sides, in an order of its own, padding at the end."""
    path.mkdir()
    train_spm(path / "source.spm", WORDS)
    train_spm(path / "target.spm", OTHER)
    pieces = {piece for name in ("source.spm", "target.spm") for piece in pieces_of(path / name)}
    tokens = ["</s>", "<unk>", *sorted(pieces - {"<s>", "</s>", "<unk>"}), *LANGUAGES, "<pad>"]
    (path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}), encoding="utf-8")
    pad = len(tokens) - 1
    config = transformers.MarianConfig(
        vocab_size=len(tokens),
        decoder_vocab_size=len(tokens),
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=0,
        forced_eos_token_id=0,
        **SHAPE,
    )
    model = transformers.MarianMTModel(config).eval()
    randomize(model)
    model.final_logits_bias.normal_().mul_(0.3)[0, 0] += 1
    model.generation_config.num_beams = 6
    model.generation_config.length_penalty = 0.8
    model.save_pretrained(path)
    if pickled:
        (path / "model.safetensors").unlink()
        torch.save(model.state_dict(), path / "pytorch_model.bin")
    return model


def pieces_of(path: Path) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, transformers.MarianMTModel]:
    path = tmp_path_factory.mktemp("marian") / "opus"
    return path, make_marian(path)


@pytest.mark.parametrize("language", [None, "fra"])
def test_tokens_and_log_probabilities_are_those_of_transformers(directory, language: str | None) -> None:
    path, oracle = directory
    imported = marian.read(path, target_language=language)
    ids = json.loads((path / "vocab.json").read_text(encoding="utf-8"))
    special = [ids["<pad>"], ids["<unk>"], ids["<pad>"], 0]
    to_foreign = names_to_foreign(imported, "target", {**ids, "fra": ids[">>fra<<"], "deu": ids[">>deu<<"]}, special)
    spm = sentencepiece.SentencePieceProcessor(model_file=str(path / "source.spm"))
    before = [ids[f">>{language}<<"]] if language else []

    def encode(text: str) -> list[int]:
        return [*before, *(ids.get(piece, ids["<unk>"]) for piece in spm.encode(text, out_type=str)), 0]

    def forward(source, mask, target):
        return oracle(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits

    check_against(
        imported,
        [*sentences(SOURCES - 2), "ß unknown", "the </s> and"],
        to_foreign,
        forward,
        encode,
        [ids["<pad>"]],
        0,
        ids["<pad>"],
        [ids["<pad>"]],
    )


def test_generation_defaults_and_languages_come_along(directory) -> None:
    imported = marian.read(directory[0], target_language="deu")
    assert imported.generation["beam_size"] == 6
    assert imported.generation["length_penalty"] == 0.8
    assert imported.generation["early_stopping"] is False
    assert imported.generation["forced_end"] is True
    assert imported.languages["target_language"] == "deu"
    (prefix,) = imported.languages["source_prefix_by_target"]["fra"]
    assert imported.source.id_to_token(prefix) == "<language fra>"


def test_at_the_length_limit_the_end_token_comes_as_in_transformers(directory, tmp_path: Path) -> None:
    path, oracle = directory
    imported = marian.read(path, target_language="fra")
    imported.write(tmp_path / "run")
    convert(tmp_path / "run", tmp_path / "bundle", "opus", variants=("fp32",))
    served = ServedModel(Engine(read_bundle(tmp_path / "bundle"), EngineSettings(threads=1)))
    request = GenerateRequest(inputs=sentences(40), beam_size=4, early_stopping=True, max_length=6, length_penalty=1.0)
    found = served.engine.run(plan_generate(request, served, Settings()))
    ids = json.loads((path / "vocab.json").read_text(encoding="utf-8"))
    special = [ids["<pad>"], ids["<unk>"], ids["<pad>"], 0]
    to_foreign = names_to_foreign(imported, "target", {**ids, "fra": ids[">>fra<<"], "deu": ids[">>deu<<"]}, special)
    spm = sentencepiece.SentencePieceProcessor(model_file=str(path / "source.spm"))
    for text, result in zip(sentences(40), found, strict=True):
        pieces = [ids.get(piece, ids["<unk>"]) for piece in spm.encode(text, out_type=str)]
        wanted = oracle.generate(
            torch.tensor([[ids[">>fra<<"], *pieces, 0]]),
            num_beams=4,
            early_stopping=True,
            length_penalty=1.0,
            max_length=7,
            forced_eos_token_id=0,
            bad_words_ids=[[ids["<pad>"]]],
            renormalize_logits=True,
        )
        (best,) = result.hypotheses
        assert [to_foreign[i] for i in best.ids] + [0] == [i for i in wanted[0, 1:].tolist() if i != ids["<pad>"]]


def test_a_target_is_decoded_as_by_sentencepiece(directory) -> None:
    imported = marian.read(directory[0])
    spm = sentencepiece.SentencePieceProcessor(model_file=str(directory[0] / "target.spm"))
    for text in sentences(50, OTHER):
        ids = imported.target.encode(text).ids
        assert UNK not in ids
        assert imported.target.decode(ids, skip_special_tokens=False) == text == spm.decode(spm.encode(text))


def test_weights_from_pytorch_model_bin_are_the_same(tmp_path: Path, directory) -> None:
    make_marian(tmp_path / "pickled", pickled=True)
    first, second = marian.read(directory[0]), marian.read(tmp_path / "pickled")
    assert first.config == second.config
    assert all(torch.equal(first.weights[name], second.weights[name]) for name in first.weights)


def test_all_that_does_not_fit_is_said_at_once_and_nothing_is_written(tmp_path: Path, directory, capsys) -> None:
    for file in directory[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    config |= {"activation_function": "gelu_new", "decoder_ffn_dim": 96, "encoder_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "target.spm").write_bytes((tmp_path / "target.spm").read_bytes()[:100])
    assert main(["import", "marian", str(tmp_path), "--out", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    for part in ("gelu_new", "decoder_ffn_dim is 96", "encoder_layers is 3", "target.spm is no whole"):
        assert part in said
    assert not (tmp_path / "run").exists()


def test_t5_is_refused_with_the_format_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5"}', encoding="utf-8")
    with pytest.raises(ImportRefusedError, match="use: attendant import t5"):
        marian.read(tmp_path)
