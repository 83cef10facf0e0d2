"""Pegasus and Blenderbot of Hugging Face's library, against the library itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from attendant.model.importers.formats import blenderbot, pegasus
from attendant.model.importers.imported import ImportedModel
from attendant.model.importers.problems import ImportRefusedError
from tests.model.importers.formats.test_t5 import check_beams
from tests.model.importers.test_m2m_bart import SHAPE, save, write_bytes
from tests.support.foreign import SOURCES, WORDS, check_against, names_to_foreign, sentences, train_spm

OFFSET = 103
UNUSED = 5  # rows of the embedding that no token has


def make_pegasus(path: Path, **changes: Any) -> tuple[Any, Any, dict[str, int]]:
    """The model, SentencePiece's own processor, and ids by token."""
    path.mkdir(exist_ok=True)
    spm = train_spm(path / pegasus.SPM, WORDS, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, vocab_size=60)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PegasusTokenizer", "offset": OFFSET}))
    ids = {processor.id_to_piece(i): i + OFFSET for i in range(2, processor.get_piece_size())}
    ids |= {"<pad>": 0, "</s>": 1, "<mask_1>": 2, "<mask_2>": 3} | {f"<unk_{i}>": i + 2 for i in range(2, OFFSET)}
    shape = SHAPE | {"bos_token_id": 0, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    options = {"activation_function": "relu", "scale_embedding": True, "forced_eos_token_id": 1, **changes}
    config = transformers.PegasusConfig(vocab_size=len(ids) + UNUSED, **shape, **options)
    oracle = save(path, transformers.PegasusForConditionalGeneration(config), seed=1)
    return oracle, processor, ids | {f"<unused {i}>": i for i in range(len(ids) + UNUSED)}


def make_blenderbot(path: Path) -> tuple[Any, dict[str, int]]:
    """The model, and ids by token: BART's files, with padding first as Blenderbot has it."""
    path.mkdir(exist_ok=True)
    ids = write_bytes(path) | {"<pad>": 0, "<s>": 1}
    (path / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "BlenderbotTokenizer", "add_prefix_space": true}')
    shape = SHAPE | {"bos_token_id": 1, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}
    size = len(ids) - 1  # <mask> has no row, as in the public ones
    config = transformers.BlenderbotConfig(vocab_size=size, scale_embedding=True, **shape)
    return save(path, transformers.BlenderbotForConditionalGeneration(config), seed=1), ids


def compare(imported: ImportedModel, oracle: Any, ids: dict[str, int], special: list[int], encode: Any) -> None:
    """`special`: ids of padding, unknown, start and end."""
    pad, _, start, end = special
    to_foreign = names_to_foreign(imported, "target", ids, special)
    texts = sentences(SOURCES)

    def forward(source: torch.Tensor, mask: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = oracle(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
        return logits

    blocked = sorted({pad, start})
    check_against(imported, texts, to_foreign, forward, encode, [start], end, pad, blocked)
    check_beams(imported, oracle, texts, [encode(text) for text in texts], to_foreign, blocked, end)


@pytest.mark.parametrize("saved", [False, True], ids=["spiece.model", "tokenizer.json"])
def test_pegasus_tokens_and_log_probabilities_are_those_of_transformers(tmp_path: Path, saved: bool) -> None:
    oracle, processor, ids = make_pegasus(tmp_path / "model")
    if saved:
        tokenizer = transformers.PegasusTokenizer.from_pretrained(str(tmp_path / "model"))
        tokenizer.save_pretrained(tmp_path / "model")
        (tmp_path / "model" / pegasus.SPM).unlink()
    imported = pegasus.read(tmp_path / "model")

    def encode(text: str) -> list[int]:
        return [*(i + OFFSET for i in processor.encode(text)), 1]

    compare(imported, oracle, ids, [0, OFFSET + 2, 0, 1], encode)
    assert imported.generation["forced_end"] is True
    assert imported.target.decode(imported.target.encode("the of they").ids) == "the of they"


def test_blenderbot_tokens_and_log_probabilities_are_those_of_transformers(tmp_path: Path) -> None:
    oracle, ids = make_blenderbot(tmp_path)
    imported = blenderbot.read(tmp_path)
    reference = Tokenizer(models.BPE.from_file(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    compare(imported, oracle, ids, [0, 3, 1, 2], lambda text: [*reference.encode(text).ids, 2])
    assert imported.target.decode(imported.target.encode("Größe 😀").ids, skip_special_tokens=False) == " Größe 😀"


def test_what_transformers_forbids_an_answer_to_repeat_of_its_source_is_told(tmp_path: Path) -> None:
    make_blenderbot(tmp_path)
    path = tmp_path / "generation_config.json"
    generation = json.loads(path.read_text())
    path.write_text(json.dumps(generation | {"encoder_no_repeat_ngram_size": 0}))
    assert blenderbot.read(tmp_path).notes == []
    path.write_text(json.dumps(generation | {"encoder_no_repeat_ngram_size": 3}))
    (note,) = blenderbot.read(tmp_path).notes
    assert "encoder_no_repeat_ngram_size is not applied" in note


def test_a_pegasus_without_sentencepiece_is_refused(tmp_path: Path) -> None:
    make_pegasus(tmp_path)
    (tmp_path / pegasus.SPM).unlink()
    with pytest.raises(ImportRefusedError, match=r"spiece\.model cannot be read: No such file"):
        pegasus.read(tmp_path)
