"""`attendant import PATH` without a format, refusals that stop at the line that decides, and the loss of a model."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from attendant import main
from attendant.model.importers.loss import bits_per_token
from attendant.model.search.reference import next_logprobs
from attendant.model.text.tokenizer import EOS
from tests.model.importers import test_fairseq as fairseq
from tests.model.importers.test_hostile import FORMATS, make_fairseq, make_torch
from tests.model.importers.test_marian import make_marian
from tests.support.foreign import sentences


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_is_found_by_the_files(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, arguments, _ = FORMATS[name]
    make(tmp_path / "in")
    form, *rest = arguments.replace("DIR", str(tmp_path / "in")).split()
    assert main(["import", *rest, "--out", str(tmp_path / "run")]) == 0
    assert f"{tmp_path / 'run'}: {form}, " in capsys.readouterr().out


def test_a_path_that_is_no_model_is_refused_with_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "model.npz").write_text("x")
    (tmp_path / "x.onnx").write_text("x")
    for path, why in (
        ("none", "is not there"),
        ("x.onnx", "put the format before it"),
        ("dir", f"name the file: {tmp_path / 'dir' / 'model.npz'}"),
    ):
        assert main(["import", str(tmp_path / path), "--out", str(tmp_path / "run")]) != 0
        assert why in capsys.readouterr().err


@pytest.mark.parametrize("form", [["marian"], ["bart"], []])
def test_a_model_of_another_kind_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: list[str]
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "longt5"}', encoding="utf-8")
    assert main(["import", *form, str(tmp_path), "--out", str(tmp_path / "run")]) == 1
    head, line = capsys.readouterr().err.splitlines()
    assert head.endswith("nothing was written:")
    assert "its encoder attends locally" in line


@pytest.mark.parametrize(("prefix", "who"), [("module.", "DistributedDataParallel"), ("_orig_mod.", "torch.compile")])
def test_weights_of_a_wrapped_model_are_refused_with_the_name_of_the_wrapper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], prefix: str, who: str
) -> None:
    make_marian(tmp_path / "opus")
    weights = tmp_path / "opus" / "model.safetensors"
    save_file({prefix + name: tensor for name, tensor in load_file(weights).items()}, weights)
    make_fairseq(tmp_path / "fairseq")
    held = torch.load(tmp_path / "fairseq" / "checkpoint.pt", weights_only=False)
    held["model"] = {prefix + name: tensor for name, tensor in held["model"].items()}
    torch.save(held, tmp_path / "fairseq" / "checkpoint.pt")
    dictionary = str(tmp_path / "fairseq" / "dict.txt")
    given = [str(tmp_path / "fairseq" / "checkpoint.pt"), "--dict-source", dictionary, "--dict-target", dictionary]
    capsys.readouterr()  # of transformers' progress
    for arguments in (["marian", str(tmp_path / "opus")], ["fairseq", *given]):
        assert main(["import", *arguments, "--out", str(tmp_path / "run")]) == 1
        _, line = capsys.readouterr().err.splitlines()
        assert f"all begin with {prefix}, which {who} puts there; save model." in line


def test_lightnings_checkpoint_is_refused_with_the_name_that_the_map_must_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_torch(tmp_path / "in")
    path = tmp_path / "in" / "model.pt"
    held = {f"model.{name}": tensor for name, tensor in torch.load(path).items()}
    torch.save({"state_dict": held, "epoch": 3, "pytorch-lightning_version": "2.0"}, path)
    arguments = ["torch", str(path), "--map", str(tmp_path / "in" / "map.json"), "--out", str(tmp_path / "run")]
    assert main(["import", *arguments]) == 1
    _, line = capsys.readouterr().err.splitlines()
    assert '"transformer" in map.json must be "model.transformer"' in line
    assert "model. is put there by Lightning" in line


def test_the_loss_that_fairseq_recorded_stands_beside_that_on_the_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_fairseq(tmp_path / "in")
    path = tmp_path / "in" / "checkpoint.pt"
    held = torch.load(path, weights_only=False)
    held["args"].criterion = "label_smoothed_cross_entropy"
    held["extra_state"] = {"val_loss": np.float64(1.19), "epoch": 2}
    torch.save(held, path)
    pairs = list(zip(sentences(5), sentences(5, seed=2), strict=True))
    (tmp_path / "samples.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    dictionary = tmp_path / "in" / "dict.txt"
    given = [f"--dict-source={dictionary}", f"--dict-target={dictionary}", f"--samples={tmp_path / 'samples.tsv'}"]
    assert main(["import", "fairseq", str(path), *given, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    recorded = "  its checkpoint records a loss of 1.19 on its own validation data (label_smoothed_cross_entropy, bits"
    imported = fairseq.fairseq.read(path, dictionary, dictionary)
    loss = bits_per_token(imported, pairs)
    assert f"{recorded} a token)\n  its loss on 5 samples is {loss:.2f} (cross-entropy, bits a token)\n" in said
    model, total, count = imported.load(), 0.0, 0
    for source, target in pairs:
        ids = [*imported.target.encode(target).ids, EOS]
        known = imported.source.encode(source).ids
        total -= sum(next_logprobs(model, known, tuple(ids[:i]))[token] for i, token in enumerate(ids))
        count += len(ids)
    assert loss == pytest.approx(total / count / math.log(2), rel=1e-4)


def test_samples_that_do_not_fit_have_no_loss(tmp_path: Path) -> None:
    make_fairseq(tmp_path / "in")
    dictionary = tmp_path / "in" / "dict.txt"
    imported = fairseq.fairseq.read(tmp_path / "in" / "checkpoint.pt", dictionary, dictionary)
    assert bits_per_token(imported, [("the " * 200, "of")]) is None
