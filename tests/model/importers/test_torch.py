"""A plain `nn.Transformer`, as the tutorial writes it, imported by its state dict and a map."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from attendant import main
from attendant.model.importers.formats import torch as importer
from attendant.model.importers.problems import ImportRefusedError
from attendant.model.transformer import sinusoids
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
)

UNK, PAD, BOS, EOS = range(4)  # the tutorial's
SPECIAL = ["<unk>", "<pad>", "<bos>", "<eos>"]
MAP = {
    "heads": 4,
    "source_embedding": "src_tok_emb.weight",
    "target_embedding": "tgt_tok_emb.weight",
    "output": "generator",
    "positions": "positions",
    "pad": PAD,
    "unk": UNK,
    "start": BOS,
    "end": EOS,
    "source_vocabulary": "source.txt",
    "target_vocabulary": "target.json",
}


def make_files(path: Path, pre: bool = False, **changes: Any) -> TorchTransformer:
    source, target = [*SPECIAL, *WORDS[:-1]], [*SPECIAL, *OTHER]
    (path / "source.txt").write_text("\n".join(source) + "\n", encoding="utf-8")
    (path / "target.json").write_text(json.dumps({token: i for i, token in enumerate(target)}), encoding="utf-8")
    (path / "map.json").write_text(json.dumps({**MAP, "norm_first": pre, **changes}), encoding="utf-8")
    oracle = TorchTransformer(
        len(source),
        len(target),
        sinusoids(LENGTH, 32),
        d_model=32,
        nhead=4,
        num_encoder_layers=2,
        num_decoder_layers=1,
        dim_feedforward=48,
        norm_first=pre,
    ).eval()
    randomize(oracle, seed=1)
    torch.save(oracle.state_dict(), path / "model.pt")
    return oracle


@pytest.mark.parametrize("pre", [False, True])
def test_tokens_and_log_probabilities_are_those_of_the_torch_model(tmp_path: Path, pre: bool) -> None:
    oracle = make_files(tmp_path, pre)
    imported = importer.read(tmp_path / "model.pt", map=tmp_path / "map.json")
    assert imported.config.final_norm is not pre  # nn.Transformer ends each stack with a norm, which pre-norm implies
    ids = {token: i for i, token in enumerate([*SPECIAL, *OTHER])}
    source_ids = {token: i for i, token in enumerate([*SPECIAL, *WORDS[:-1]])}
    source = names_to_foreign(imported, "source", source_ids, [PAD, UNK, BOS, EOS])
    target = names_to_foreign(imported, "target", ids, [PAD, UNK, BOS, EOS])

    def encode(text: str) -> list[int]:
        return [BOS, *(source_ids.get(word, UNK) for word in text.split()), EOS]

    check_against(
        imported, sentences(SOURCES), target, oracle, encode, [BOS], EOS, PAD, [PAD, BOS], source_to_foreign=source
    )


def test_the_paper_positions_need_no_table(tmp_path: Path) -> None:
    make_files(tmp_path, positions="sinusoidal", max_length=LENGTH)
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    table = state.pop("positions")
    torch.save({"state_dict": state}, tmp_path / "model.pt")
    imported = importer.read(tmp_path / "model.pt", map=tmp_path / "map.json")
    torch.testing.assert_close(imported.weights["source_embedding.positions"], table)


def test_the_command_writes_a_run_and_a_second_time_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_files(tmp_path)
    command = ["import", "torch", str(tmp_path / "model.pt"), "--map", str(tmp_path / "map.json")]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    assert "attendant export" in capsys.readouterr().out
    assert main([*command, "--out", str(tmp_path / "run")]) == 1
    assert "is there already" in capsys.readouterr().err


def test_flags_of_other_formats_and_missing_ones_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["import", "torch", str(tmp_path), "--out", str(tmp_path / "run")]
    assert main(command) == 2
    assert "needs --map" in capsys.readouterr().err
    assert main([*command, "--map", "x", "--dict-source", "y"]) == 2
    assert "--dict-source is not for the format torch" in capsys.readouterr().err


def test_all_that_does_not_fit_is_said_at_once(tmp_path: Path) -> None:
    make_files(tmp_path, activation="tanh", unk=99, max_length="long")
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    del state["transformer.decoder.layers.0.norm2.bias"]
    state["extra"] = torch.full((2,), float("nan"))
    state["generator.bias"][0] = float("nan")
    state["positions"][0, 1] = float("nan")
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(ImportRefusedError) as refused:
        importer.read(tmp_path / "model.pt", map=tmp_path / "map.json")
    for part in (
        "positions holds infinities",
        "tanh",
        "unk is 99",
        "norm2.bias is missing",
        "no place for the weights extra",
        "max_length is 'long'",
        "generator.bias holds infinities",
    ):
        assert part in str(refused.value)


@pytest.mark.parametrize("held", [[1, 2], {"state_dict": [1, 2]}])
def test_a_file_without_a_table_of_weights_is_refused(held: Any, tmp_path: Path) -> None:
    make_files(tmp_path)
    torch.save(held, tmp_path / "model.pt")
    with pytest.raises(ImportRefusedError, match="it holds no table of weights"):
        importer.read(tmp_path / "model.pt", map=tmp_path / "map.json")


def test_a_whole_pickled_model_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    oracle = make_files(tmp_path)
    for held, name in ((oracle, "tests.support.foreign.TorchTransformer"), (Harmful(), "posix.mkdir")):
        torch.save(held, tmp_path / "model.pt")
        with pytest.raises(ImportRefusedError, match=name):
            importer.read(tmp_path / "model.pt", map=tmp_path / "map.json")
    assert not (tmp_path / "harm was done").exists()
