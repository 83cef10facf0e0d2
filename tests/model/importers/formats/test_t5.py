"""T5, Flan-T5, mT5, ByT5 and MADLAD-400 of Hugging Face's library, against the library itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
import transformers
from safetensors.torch import load_file, save_file

from attendant import main
from attendant.common.byte_level import BYTES
from attendant.export.bundle import read_bundle
from attendant.export.runner import GraphStepper, Runner
from attendant.model import checkpoint
from attendant.model.importers.formats import t5
from attendant.model.importers.imported import ImportedModel
from attendant.model.importers.problems import ImportRefusedError
from attendant.model.search.decode import decode_all, decode_sources
from tests.model.importers.test_trained import train, translated
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

BEAM_LENGTH = 12
SHAPE: dict[str, Any] = {
    "d_model": 32,
    "d_ff": 48,
    "d_kv": 16,
    "num_heads": 2,
    "num_layers": 2,
    "num_decoder_layers": 1,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
}
# What the families differ in.
KINDS: dict[str, dict[str, Any]] = {
    "t5": {},
    "flan": {"feed_forward_proj": "gated-silu", "tie_word_embeddings": False, "d_kv": 8, "num_heads": 3},
    "mt5": {"d_kv": 24},
    "byt5": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "d_model": 48},
    "madlad": {
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "d_kv": 24,
        "pad_token_id": 1,
        "eos_token_id": 2,
    },
}
STD = {"t5": 0.3, "byt5": 0.17}  # of weights: scores are not divided by sqrt(d), and with more f32 rounds visibly
LANGUAGES = ["<2de>", "<2fr>", "<2zh_Hant>"]
TASKS = ["<2en_xx_simple>", "<2translate>", "<2Latn>", "<2>"]  # of MADLAD-400, beside its languages
SPECIAL = {"madlad": [1, 0, 0, 2]}  # ids of padding, unknown, start and end, where they are not T5's
UNUSED = 5  # rows of the embedding that no token has


class Pieces:
    """SentencePiece itself, as a tokenizer of transformers: whose own for MADLAD-400 has another unknown token."""

    def __init__(self, path: Path) -> None:
        self._pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))

    def __len__(self) -> int:
        return int(self._pieces.get_piece_size())

    def __call__(self, text: str) -> Any:
        return transformers.BatchEncoding({"input_ids": [*self._pieces.encode(text), self._pieces.eos_id()]})

    def get_vocab(self) -> dict[str, int]:
        return {self._pieces.id_to_piece(i): i for i in range(len(self))}


def make_t5(path: Path, kind: str, saved: bool = True) -> tuple[Any, Any]:
    """A model with random weights and its tokenizer; `saved`: by the library (tokenizer.json), else spiece.model."""
    path.mkdir()
    tokenizer: Any
    if kind == "byt5":
        tokenizer = transformers.ByT5Tokenizer()
    elif kind == "madlad":
        defined = ["\n", *TASKS, *LANGUAGES]
        tokenizer = Pieces(train_spm(path / t5.SPM, WORDS, user_defined_symbols=defined, vocab_size=70))
        (path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer", "extra_ids": 0}')
        saved = False
    else:
        train_spm(path / t5.SPM, WORDS, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, vocab_size=60)
        options = {"tokenizer_class": "T5Tokenizer", "extra_ids": 10}
        (path / "tokenizer_config.json").write_text(json.dumps(options), encoding="utf-8")
        tokenizer = transformers.T5Tokenizer.from_pretrained(str(path))
        if saved:
            (path / t5.SPM).unlink()
    if saved:
        tokenizer.save_pretrained(path)
    config = {"vocab_size": len(tokenizer) + UNUSED, **SHAPE, **KINDS[kind]}
    if kind == "mt5":
        model = transformers.MT5ForConditionalGeneration(transformers.MT5Config(**config))
    else:
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**config))
    if "tie_word_embeddings" in KINDS[kind]:  # the library ties new models always
        model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.shared.weight))
    model.eval()
    randomize(model, std=STD.get(kind, 0.2), cross=2.0)
    model.save_pretrained(path)
    if kind == "madlad":  # the library's converter of T5X called the embeddings so, and the library takes any name
        weights = dict(model.state_dict())
        shared = weights.pop("shared.weight")
        weights |= {"decoder.embed_tokens.weight": shared, "lm_head.weight": weights["lm_head.weight"].clone()}
        del weights["encoder.embed_tokens.weight"]
        save_file(weights, path / "model.safetensors")
        options = json.loads((path / "config.json").read_text()) | {"tie_word_embeddings": False}
        (path / "config.json").write_text(json.dumps(options))
    return model, tokenizer


def foreign_ids(imported: ImportedModel, tokenizer: Any, kind: str) -> dict[int, int]:
    ids = tokenizer.get_vocab()
    if kind == "byt5":
        ids = {name: byte + 3 for name, byte in BYTES.items()} | tokenizer.added_tokens_encoder
    ids |= {f"<unused {i}>": i for i in range(len(tokenizer) + UNUSED)}
    return names_to_foreign(imported, "target", ids, SPECIAL.get(kind, [0, 2, 0, 1]))


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_a_random_model_computes_what_the_library_computes(tmp_path: Path, kind: str) -> None:
    oracle, tokenizer = make_t5(tmp_path / kind, kind)
    imported = t5.read(tmp_path / kind, max_length=LENGTH)
    ids = foreign_ids(imported, tokenizer, kind)

    def encode(text: str) -> list[int]:
        found: list[int] = tokenizer(text).input_ids
        return found

    def forward(source: torch.Tensor, mask: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = oracle(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
        return logits

    texts = [text[: LENGTH - 1] for text in sentences(SOURCES)] if kind == "byt5" else sentences(SOURCES)
    pad, _, start, end = SPECIAL.get(kind, [0, 2, 0, 1])
    check_against(imported, texts, ids, forward, encode, [start], end, pad, [pad])
    check_beams(imported, oracle, texts, [encode(text) for text in texts], ids, [pad], end)


def check_beams(
    imported: ImportedModel,
    oracle: Any,
    texts: list[str],
    sources: list[list[int]],
    ids: dict[int, int],
    blocked: list[int],
    end: int,
) -> None:
    """Beam 4 is that of the library on 99 % of the sources; `blocked`: padding, and what has no probability here."""
    pad = blocked[0]
    width = max(map(len, sources))
    given = torch.tensor([[*source, *[pad] * (width - len(source))] for source in sources])
    answers = oracle.generate(
        input_ids=given,
        attention_mask=(given != pad).long(),
        num_beams=4,
        early_stopping=True,
        length_penalty=1.0,
        max_new_tokens=BEAM_LENGTH,
        forced_eos_token_id=None,
        suppress_tokens=blocked,
        renormalize_logits=True,
    )
    wanted = [[i for i in row[1:].tolist() if i not in (pad, end)] for row in answers]
    ours = [encoding.ids for encoding in imported.source.encode_batch(texts)]
    found = decode_all(imported.load(), ours, 4, max_length=BEAM_LENGTH, early_stopping=True)
    same = sum([ids[i] for i in row] == answer for row, answer in zip(found, wanted, strict=True))
    assert same >= 0.99 * len(sources)


@pytest.mark.parametrize("saved", [True, False], ids=["tokenizer.json", "spiece.model"])
def test_sentinels_are_cut_out_of_a_text_as_the_library_does(tmp_path: Path, saved: bool) -> None:
    _, tokenizer = make_t5(tmp_path / "model", "t5", saved)
    imported = t5.read(tmp_path / "model")
    ids = foreign_ids(imported, tokenizer, "t5")
    for text in ("you <extra_id_0> for <extra_id_9>.", "<extra_id_1>the", "  of   the ", "é"):
        assert [*(ids[i] for i in imported.source.encode(text).ids), 1] == tokenizer(text).input_ids
    answer = imported.target.encode("you <extra_id_0> for").ids
    assert imported.target.decode(answer) == "you<extra_id_0> for"


def test_sentinels_beyond_the_embedding_are_left_out_and_other_tokens_there_are_refused(tmp_path: Path) -> None:
    """transformers adds a hundred to a MADLAD-400 that is saved again."""
    make_t5(tmp_path / "model", "madlad")
    path = tmp_path / "model" / "added_tokens.json"
    path.write_text(json.dumps({f"<extra_id_{i}>": 400 - i for i in range(100)}))
    known = t5.read(tmp_path / "model")
    assert known.source.token_to_id("<extra_id_0>") is None
    path.write_text('{"<more>": 400}')
    with pytest.raises(ImportRefusedError, match="the token '<more>' has the id 400"):
        t5.read(tmp_path / "model")


def test_languages_and_lines_are_cut_as_sentencepiece_does(tmp_path: Path) -> None:
    _, tokenizer = make_t5(tmp_path / "model", "madlad")
    imported = t5.read(tmp_path / "model")
    ids = foreign_ids(imported, tokenizer, "madlad")
    texts = ("<2de> the of", "<2de>the", "to <2zh_Hant>", "the\nof", "the\n\n of", "<2Latn> <2> to", "  of   the ", "é")
    for text in texts:
        assert [*(ids[i] for i in imported.source.encode(text).ids), 2] == tokenizer(text).input_ids
    assert imported.source.decode(imported.source.encode("the\n\n of").ids) == "the\n\n of"


def test_a_target_language_is_before_the_source_of_a_request_or_of_all(tmp_path: Path) -> None:
    _, tokenizer = make_t5(tmp_path / "model", "madlad")
    plain, german = t5.read(tmp_path / "model"), t5.read(tmp_path / "model", target_language="de")
    languages = plain.languages["source_prefix_by_target"]
    assert sorted(languages) == ["de", "fr", "zh_Hant"]  # what is no language is part of a text alone
    assert german.languages["target_language"] == "de"
    ids = foreign_ids(german, tokenizer, "madlad")
    assert [*(ids[i] for i in german.source.encode("the of").ids), 2] == tokenizer("<2de> the of").input_ids
    assert [*languages["fr"], *plain.source.encode("the").ids] == plain.source.encode("<2fr> the").ids
    with pytest.raises(ImportRefusedError, match="--target-language takes one of de, fr, zh_Hant, not 'it'"):
        t5.read(tmp_path / "model", target_language="it")


def test_what_a_sentencepiece_model_spells_in_bytes_it_spells_here_too(tmp_path: Path) -> None:
    spm = train_spm(
        tmp_path / "bytes.spm", WORDS, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, byte_fallback=True, vocab_size=320
    )
    make_t5(tmp_path / "model", "t5")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    processor = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "model" / name).unlink()
    spm.rename(tmp_path / "model" / t5.SPM)
    size = processor.get_piece_size() + 110
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
    weights = load_file(tmp_path / "model" / "model.safetensors")
    save_file(weights | {"shared.weight": torch.randn(size, 32)}, tmp_path / "model" / "model.safetensors")
    imported = t5.read(tmp_path / "model")
    for text in ("the of", "the ü and 🙂!", "Zzz"):
        found = imported.source.encode(text)
        assert found.tokens == processor.encode(text, out_type=str)
        assert imported.source.decode(found.ids) == text


def test_what_is_not_covered_is_refused_by_name(tmp_path: Path) -> None:
    for kind, why in (("longt5", "attends locally"), ("switch_transformers", "mixtures of experts"), ("umt5", "own")):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}), encoding="utf-8")
        with pytest.raises(ImportRefusedError, match=f"model_type is '{kind}'.*{why}"):
            t5.read(tmp_path)


def test_options_that_the_model_class_has_not_are_refused_together(tmp_path: Path) -> None:
    make_t5(tmp_path / "model", "t5")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    changed = config | {"layer_norm_epsilon": 1e-3, "feed_forward_proj": "gated-tanh", "num_layers": 3}
    (tmp_path / "model" / "config.json").write_text(json.dumps(changed))
    with pytest.raises(ImportRefusedError) as raised:
        t5.read(tmp_path / "model", max_length=1)
    for part in (
        "layer_norm_epsilon is 0.001",
        "'gated-tanh'; it takes one of relu",
        "3 encoder layers",
        "--max-length",
    ):
        assert part in str(raised.value)


def test_a_directory_is_imported_exported_and_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_t5(tmp_path / "model", "flan")
    run, bundle = tmp_path / "run", tmp_path / "bundle"
    assert main(["import", str(tmp_path / "model"), "--out", str(run), "--max-length", "16"]) == 0
    assert "t5, " in capsys.readouterr().out
    assert main(["export", str(run), "--out", str(bundle), "--precision", "fp32"]) == 0
    read, trained = read_bundle(bundle), checkpoint.load_trained(run)
    assert (read.sizes.head_size, read.sizes.head) == (8, 8)
    sources = trained.source.encode_batch(sentences(40, OTHER, seed=7))
    runner = Runner(read.variants["fp32"].graphs, read.sizes)
    assert decode_sources(GraphStepper(runner), sources) == decode_all(trained.model, sources)
    capsys.readouterr()
    assert main(["generate", "--bundle", str(bundle), "--beam-size", "1", "the of"]) == 0
    assert capsys.readouterr().out.strip()


def test_a_trained_t5_decodes_as_in_its_own_library(tmp_path: Path) -> None:
    """To write words of another language in reverse order."""
    train_spm(tmp_path / t5.SPM, [*WORDS, *OTHER, "sind"], pad_id=0, eos_id=1, unk_id=2, bos_id=-1, vocab_size=80)
    tokenizer = transformers.T5Tokenizer.from_pretrained(str(tmp_path))
    shape = {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 1, "decoder_start_token_id": 0}
    torch.manual_seed(0)
    options = {"feed_forward_proj": "gated-gelu", "dropout_rate": 0.0, "initializer_factor": 0.5}
    config = transformers.T5Config(vocab_size=len(tokenizer), **shape, **options)
    oracle = transformers.T5ForConditionalGeneration(config)
    texts, fresh = sentences(2000), sentences(60, seed=9)
    train(oracle, tokenizer(texts).input_ids, tokenizer([translated(text) for text in texts]).input_ids, 0)
    oracle.save_pretrained(tmp_path)
    imported = t5.read(tmp_path, max_length=20)
    given = tokenizer(fresh, padding=True, return_tensors="pt")
    answers = oracle.generate(**given, do_sample=False, max_new_tokens=16)
    wanted = [[i for i in row[1:].tolist() if i not in (0, 1)] for row in answers]
    found = decode_all(imported.load(), [e.ids for e in imported.source.encode_batch(fresh)], max_length=16)
    ids = names_to_foreign(imported, "target", tokenizer.get_vocab(), [0, 2, 0, 1])
    assert [[ids[i] for i in answer] for answer in found] == wanted
    right = sum(imported.target.decode(row) == translated(text) for row, text in zip(found, fresh, strict=True))
    assert right > 0.2 * len(fresh)  # of sentences that it has not seen, after seconds of training
