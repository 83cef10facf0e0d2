"""A Marian that is trained here, to write words of another language in reverse order, against its own library."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sentencepiece
import torch
import transformers

from attendant.model.importers.formats import marian
from attendant.model.importers.imported import ImportedModel
from attendant.model.search.decode import decode_all
from tests.model.importers.test_marian import pieces_of
from tests.support.foreign import OTHER, SOURCES, WORDS, names_to_foreign, sentences, train_spm

STEPS, BATCH, RATE, LENGTH = 160, 48, 5e-3, 16


def translated(text: str) -> str:
    table = dict(zip(WORDS, [*OTHER, "sind"], strict=True))
    return " ".join(table[word] for word in reversed(text.split()))


def train(model: Any, sources: list[list[int]], targets: list[list[int]], pad: int, steps: int = STEPS) -> None:
    """Plain Adam on random batches."""
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))

    def padded(rows: list[list[int]], value: int) -> torch.Tensor:
        width = max(map(len, rows))
        return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows])

    model.train()
    for step in range(steps):
        chosen = torch.randint(len(sources), (BATCH,)).tolist()
        source, labels = padded([sources[i] for i in chosen], pad), padded([targets[i] for i in chosen], -100)
        loss = model(input_ids=source, attention_mask=(source != pad).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 30) * min(1.0, 2 * (steps - step) / steps)
        optimizer.step()
    model.eval()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[ImportedModel, Any, dict[str, int], list[list[int]]]:
    path = tmp_path_factory.mktemp("trained")
    spm = {
        name: sentencepiece.SentencePieceProcessor(model_file=str(train_spm(path / f"{name}.spm", words)))
        for name, words in (("source", WORDS), ("target", [*OTHER, "sind"]))
    }
    pieces = sorted({piece for name in spm for piece in pieces_of(path / f"{name}.spm")} - {"<s>", "</s>", "<unk>"})
    ids = {token: i for i, token in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}
    (path / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    pad = ids["<pad>"]

    def encode(name: str, texts: list[str]) -> list[list[int]]:
        return [[*(ids[piece] for piece in spm[name].encode(text, out_type=str)), 0] for text in texts]

    config = transformers.MarianConfig(
        vocab_size=len(ids),
        decoder_vocab_size=len(ids),
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=0,
        forced_eos_token_id=None,
        d_model=64,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_layers=1,
        decoder_layers=1,
        max_position_embeddings=64,
        activation_function="swish",
        scale_embedding=True,
        dropout=0.0,
        init_std=0.1,
    )
    torch.manual_seed(0)
    model = transformers.MarianMTModel(config)
    texts = sentences(2000)
    train(model, encode("source", texts), encode("target", [translated(text) for text in texts]), pad)
    model.final_logits_bias[0, pad] = -1e4  # the library leaves padding a probability, and forbids it afterwards
    model.save_pretrained(path)
    return marian.read(path), model, ids, encode("source", sentences(SOURCES, seed=9))


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_trained_marian_decodes_as_in_its_own_library(trained: Any, beam_size: int) -> None:
    imported, oracle, ids, sources = trained
    pad = oracle.config.pad_token_id
    width = max(map(len, sources))
    given = torch.tensor([[*source, *[pad] * (width - len(source))] for source in sources])
    answers = oracle.generate(
        input_ids=given,
        attention_mask=(given != pad).long(),
        num_beams=beam_size,
        do_sample=False,
        early_stopping=beam_size > 1,
        max_new_tokens=LENGTH,
    )
    wanted = [[i for i in row[1:].tolist() if i not in (pad, 0)] for row in answers]
    texts = sentences(SOURCES, seed=9)
    ours = [encoding.ids for encoding in imported.source.encode_batch(texts)]
    found = decode_all(imported.load(), ours, beam_size, max_length=LENGTH, early_stopping=True)
    to_foreign = names_to_foreign(imported, "target", ids, [pad, ids["<unk>"], pad, 0])
    assert [[to_foreign[i] for i in answer] for answer in found] == wanted
    right = map(translated, texts)
    assert sum(imported.target.decode(ids) == text for ids, text in zip(found, right, strict=True)) > 0.8 * SOURCES
