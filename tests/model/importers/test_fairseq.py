"""fairseq's checkpoints: written here in its layout, against torch's own `nn.Transformer` with the same weights."""

from __future__ import annotations

import argparse
import itertools
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch

from attendant import main
from attendant.model.importers.files import text_models
from attendant.model.importers.formats import fairseq
from attendant.model.importers.problems import ImportRefusedError, Problems
from tests.support.foreign import (
    LENGTH,
    OTHER,
    SOURCES,
    WORDS,
    Harmful,
    TorchTransformer,
    check_against,
    names_to_foreign,
    randomize,
    sentences,
    train_spm,
)

D, FF, HEADS = 32, 48, 2
BOS, PAD, EOS, UNK = range(4)
CODES = ["t h", "th e</w>", "o r</w>", "f or</w>", "a n", "an d</w>"]
PIECES = ["the", "for", "and", "th@@", "a@@", "n@@", "d", *(f"{c}@@" for c in "bcefghiklmorstuvwy"), *"aefhimnorstuwy"]


def sinusoids(length: int) -> torch.Tensor:
    """As fairseq's SinusoidalPositionalEmbedding.get_embedding computes them, from position 2 on."""
    half = D // 2
    frequency = torch.exp(torch.arange(half, dtype=torch.float) * -(math.log(10000) / (half - 1)))
    angle = torch.arange(2, length + 2, dtype=torch.float).unsqueeze(1) * frequency.unsqueeze(0)
    return torch.cat([torch.sin(angle), torch.cos(angle)], dim=1)


def make_oracle(sizes: tuple[int, int], pre: bool, positions: torch.Tensor) -> TorchTransformer:
    oracle = TorchTransformer(
        *sizes,
        positions,
        d_model=D,
        nhead=HEADS,
        num_encoder_layers=2,
        num_decoder_layers=2,
        dim_feedforward=FF,
        norm_first=pre,
        final_norm=pre,
        output_bias=False,
    ).eval()
    randomize(oracle)
    return oracle


def fairseq_weights(oracle: TorchTransformer, split: bool = True) -> dict[str, torch.Tensor]:
    """The oracle's weights under fairseq's names."""
    names = {"linear1": "fc1", "linear2": "fc2", "multihead_attn": "encoder_attn"}
    norms = {"encoder": ["self_attn", "final"], "decoder": ["self_attn", "encoder_attn", "final"]}
    found = {
        "encoder.embed_tokens.weight": oracle.src_tok_emb.weight.detach(),
        "decoder.embed_tokens.weight": oracle.tgt_tok_emb.weight.detach(),
        "decoder.output_projection.weight": oracle.generator.weight.detach(),
        "encoder.version": torch.Tensor([3]),
    }
    for name, value in oracle.transformer.state_dict().items():
        side, *rest = name.split(".")
        if rest[0] == "norm":
            found[f"{side}.layer_norm.{rest[1]}"] = value
            continue
        layer, part, leaf = f"{side}.layers.{rest[1]}", names.get(rest[2], rest[2]), ".".join(rest[3:])
        if part.startswith("norm"):
            part = f"{norms[side][int(part[4:]) - 1]}_layer_norm"
        if leaf.startswith("in_proj_") and split:
            for letter, third in zip("qkv", value.chunk(3), strict=True):
                found[f"{layer}.{part}.{letter}_proj.{leaf.removeprefix('in_proj_')}"] = third
        else:
            found[f"{layer}.{part}.{leaf}"] = value
    return found


def options(pre: bool, **changes: Any) -> argparse.Namespace:
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {
            "embed_dim": D,
            "ffn_embed_dim": FF,
            "layers": 2,
            "attention_heads": HEADS,
            "normalize_before": pre,
            "learned_pos": False,
        }.items()
    }
    return argparse.Namespace(
        **{
            "arch": "transformer",
            "activation_fn": "relu",
            "share_decoder_input_output_embed": False,
            "share_all_embeddings": False,
            "max_source_positions": LENGTH,
            "max_target_positions": LENGTH,
            **sides,
            **changes,
        }
    )


def write_dictionaries(path: Path, tokens: list[str]) -> dict[str, Path]:
    (path / "dict.txt").write_text("".join(f"{token} 10\n" for token in tokens), encoding="utf-8")
    return {"dict_source": path / "dict.txt", "dict_target": path / "dict.txt"}


def compare(path: Path, pieces: list[str], encode: Any, oracle: TorchTransformer, **files: Path) -> None:
    imported = fairseq.read(path / "checkpoint.pt", **write_dictionaries(path, pieces), **files)
    names = pieces
    if "bpe_codes" in files:
        names = [piece.removesuffix("@@") if "@@" in piece else f"{piece}</w>" for piece in pieces]
    ids = {"<s>": BOS} | {name: i + 4 for i, name in enumerate(names)}
    to_foreign = names_to_foreign(imported, "target", ids, [PAD, UNK, EOS, EOS])
    check_against(imported, sentences(SOURCES), to_foreign, oracle, encode, [EOS], EOS, PAD, [PAD])


@pytest.mark.parametrize("pre", [False, True])
def test_tokens_and_log_probabilities_are_those_of_torchs_own_transformer(tmp_path: Path, pre: bool) -> None:
    pieces = [*WORDS[:-1], *OTHER]
    oracle = make_oracle((len(pieces) + 4, len(pieces) + 4), pre, sinusoids(LENGTH))
    state = {"best": np.float64(3.5), "history": np.arange(3), "name": None}
    torch.save(
        {"args": options(pre), "model": fairseq_weights(oracle), "extra_state": state}, tmp_path / "checkpoint.pt"
    )

    def encode(text: str) -> list[int]:
        return [*(pieces.index(word) + 4 if word in pieces else UNK for word in text.split()), EOS]

    compare(tmp_path, pieces, encode, oracle)


def test_learned_positions_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    pieces = [*WORDS, *OTHER]
    table = torch.randn(LENGTH, D, generator=torch.Generator().manual_seed(0))
    oracle = make_oracle((len(pieces) + 4, len(pieces) + 4), True, table)
    weights = fairseq_weights(oracle)
    for side in ("encoder", "decoder"):
        weights[f"{side}.embed_positions.weight"] = torch.cat([torch.full((2, D), 9.0), table])  # two are never used
    learned = options(True, encoder_learned_pos=True, decoder_learned_pos=True)
    torch.save({"args": learned, "model": weights}, tmp_path / "checkpoint.pt")
    compare(tmp_path, pieces, lambda text: [*(pieces.index(word) + 4 for word in text.split()), EOS], oracle)


def test_sentencepiece_cuts_texts_and_the_dictionary_gives_ids(tmp_path: Path) -> None:
    spm = train_spm(tmp_path / "a.model", WORDS)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    pieces = sorted({processor.id_to_piece(i) for i in range(3, processor.get_piece_size())})
    pieces.remove("▁they")  # SentencePiece may have pieces that the dictionary lacks
    oracle = make_oracle((len(pieces) + 4, len(pieces) + 4), True, sinusoids(LENGTH))
    torch.save({"args": options(True), "model": fairseq_weights(oracle)}, tmp_path / "checkpoint.pt")

    def encode(text: str) -> list[int]:
        found = processor.encode(text, out_type=str)
        return [*(pieces.index(piece) + 4 if piece in pieces else UNK for piece in found), EOS]

    compare(tmp_path, pieces, encode, oracle, sentencepiece=spm)


@pytest.mark.parametrize("made_by", ["subword-nmt", "fastBPE"])
def test_bpe_codes_cut_words_as_subword_nmt_does(tmp_path: Path, made_by: str) -> None:
    lines = [f"{code} 7" for code in CODES] if made_by == "fastBPE" else ["#version: 0.2", *CODES]
    (tmp_path / "codes").write_text("\n".join(lines) + "\n", encoding="utf-8")
    oracle = make_oracle((len(PIECES) + 4, len(PIECES) + 4), True, sinusoids(LENGTH))
    config = {"model": vars(options(True)), "generation": {"beam": 5, "lenpen": 0.7}}
    torch.save({"args": None, "cfg": config, "model": fairseq_weights(oracle, split=False)}, tmp_path / "checkpoint.pt")

    def encode(text: str) -> list[int]:
        return [PIECES.index(piece) + 4 if piece in PIECES else UNK for piece in apply_codes(text)] + [EOS]

    compare(tmp_path, PIECES, encode, oracle, bpe_codes=tmp_path / "codes")


def apply_codes(text: str) -> list[str]:
    """subword-nmt's algorithm, written out: the first merge of the file that applies, everywhere, until none does."""
    found = []
    for word in text.split():
        symbols = [*word[:-1], f"{word[-1]}</w>"]
        while True:
            pairs = [f"{a} {b}" for a, b in itertools.pairwise(symbols)]
            merge = min((code for code in CODES if code in pairs), key=CODES.index, default=None)
            if merge is None:
                break
            at = pairs.index(merge)
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        found += [f"{symbol}@@" for symbol in symbols[:-1]] + [symbols[-1].removesuffix("</w>")]
    return found


def test_generation_defaults_come_along_and_pieces_become_words_again(tmp_path: Path) -> None:
    test_bpe_codes_cut_words_as_subword_nmt_does(tmp_path, "subword-nmt")
    files = write_dictionaries(tmp_path, PIECES)
    imported = fairseq.read(tmp_path / "checkpoint.pt", **files, bpe_codes=tmp_path / "codes")
    assert imported.generation == {"beam_size": 5, "length_penalty": 0.7}
    assert imported.target.decode(imported.target.encode("the for and").ids) == "the for and"


def test_what_a_pickle_would_execute_is_refused_by_name_and_never_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = write_dictionaries(tmp_path, WORDS)
    flags = [f"--{name.replace('_', '-')}={path}" for name, path in files.items()]
    torch.save({"args": Harmful(), "model": {}}, tmp_path / "zip.pt")
    torch.save({"args": Harmful(), "model": {}}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Harmful(), protocol=2))
    for name in ("zip.pt", "old.pt", "bare.pt"):
        assert main(["import", "fairseq", name, *flags, "--out", "run"]) == 1
        said = capsys.readouterr().err
        assert "posix.mkdir" in said
        assert "Traceback" not in said
    assert not (tmp_path / "harm was done").exists()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("size", [0, 3, 200, 2000])
def test_a_truncated_checkpoint_is_refused(tmp_path: Path, size: int) -> None:
    oracle = make_oracle((20, 20), True, sinusoids(LENGTH))
    torch.save({"args": options(True), "model": fairseq_weights(oracle)}, tmp_path / "whole.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "whole.pt").read_bytes()[:size])
    with pytest.raises(ImportRefusedError, match="cannot be read as a torch checkpoint"):
        fairseq.read(tmp_path / "cut.pt", **write_dictionaries(tmp_path, WORDS))


def test_all_that_does_not_fit_is_said_at_once(tmp_path: Path) -> None:
    pieces = ["a"] * 16
    oracle = make_oracle((20, 20), True, sinusoids(LENGTH))
    changed = options(True, decoder_normalize_before=False, adaptive_softmax_cutoff="1,2", activation_fn="tanh")
    weights = fairseq_weights(oracle)
    weights["encoder.layers.0.mystery"] = weights["decoder.embed_tokens.weight"][:19]
    weights["decoder.embed_tokens.weight"] = weights["encoder.layers.0.mystery"]
    torch.save({"args": changed, "model": weights}, tmp_path / "c.pt")
    with pytest.raises(ImportRefusedError) as refused:
        fairseq.read(tmp_path / "c.pt", **write_dictionaries(tmp_path, pieces))
    for part in ("pre-norm", "adaptive softmax", "tanh", "no place for", "decoder.embed_tokens.weight is 19 x 32"):
        assert part in str(refused.value)


def test_codes_of_another_version_are_refused_and_missing_ones_are_hinted_at(tmp_path: Path) -> None:
    oracle = make_oracle((len(PIECES) + 4, len(PIECES) + 4), True, sinusoids(LENGTH))
    torch.save({"args": options(True), "model": fairseq_weights(oracle)}, tmp_path / "checkpoint.pt")
    files = write_dictionaries(tmp_path, PIECES)
    for lines, why in ((CODES, "no '#version: 0.2' line"), (["#version: 0.1", *CODES], "version 0.2 can be imported")):
        (tmp_path / "codes").write_text("\n".join(lines))
        with pytest.raises(ImportRefusedError, match=why):
            fairseq.read(tmp_path / "checkpoint.pt", **files, bpe_codes=tmp_path / "codes")
    assert "without --bpe-codes" in fairseq.read(tmp_path / "checkpoint.pt", **files).notes[0]


def test_a_byte_order_mark_is_no_part_of_the_first_token(tmp_path: Path) -> None:
    (tmp_path / "dict.txt").write_text("\ufeffthe 10\nof 9\n", encoding="utf-8")
    assert text_models.read_lines(tmp_path / "dict.txt", Problems(tmp_path)) == ["the 10", "of 9"]
