from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attendant.model import checkpoint
from attendant.model.config import CHOICES, TrainConfig
from attendant.model.errors import UserError
from attendant.model.text import tokenizer
from attendant.model.training.optim import make_optimizer
from attendant.model.transformer import Transformer
from tests.support.small_models import make_model


def after_steps(model: Transformer, optimizer: torch.optim.Optimizer, steps: int) -> dict[str, torch.Tensor]:
    for step in range(steps):
        torch.manual_seed(step)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        optimizer.step()
    return checkpoint.weights_of(model)


@pytest.mark.parametrize("name", CHOICES["optimizer"])
def test_a_saved_training_state_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = make_model()
    optimizer = make_optimizer(model, TrainConfig(optimizer=name))
    after_steps(model, optimizer, 3)
    checkpoint.save_training(tmp_path, 3, model, optimizer, {"step": 3})
    expected = after_steps(model, optimizer, 3)

    restored = make_model(seed=9)
    fresh = make_optimizer(restored, TrainConfig(optimizer=name))
    saved = tmp_path / "step-00000003"
    assert checkpoint.read_state(saved) == {"step": 3}
    checkpoint.load_weights(restored, saved / checkpoint.MODEL)
    checkpoint.load_optimizer(saved, fresh)
    found = after_steps(restored, fresh, 3)
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_a_tied_matrix_is_stored_once() -> None:
    weights = checkpoint.weights_of(make_model(shared_vocab=True, source_vocab=11))
    assert sum("tokens" in name or name == "output.weight" for name in weights) == 1


def test_averaging_is_the_mean(tmp_path: Path) -> None:
    for i in (1, 2):
        checkpoint.save_weights({"w": torch.full((2,), float(i))}, tmp_path / f"{i}.safetensors")
    mean = checkpoint.average_with(
        {"w": torch.full((2,), 6.0)}, [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
    )
    assert mean["w"].tolist() == [3.0, 3.0]


def test_pruning_keeps_the_last_few_and_the_best(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        (tmp_path / f"step-{step:08d}").mkdir()
    for step in (1, 2):
        (tmp_path / f"best-{step:08d}").mkdir()
    (tmp_path / ".step-00000005.partial").mkdir()
    checkpoint.prune(tmp_path, keep_last=2, best_step=1)
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith(".")) == [
        "best-00000001",
        "step-00000003",
        "step-00000004",
    ]


def test_a_directory_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        (directory / "half").write_text("x", encoding="utf-8")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        checkpoint.write_directory(tmp_path / "step-00000001", fail)
    assert checkpoint.checkpoints(tmp_path) == []


def test_what_is_no_run_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json is not there"):
        checkpoint.load_trained(tmp_path)
    with pytest.raises(UserError, match=r"no model\.safetensors"):
        checkpoint.find_weights(tmp_path)


@pytest.mark.parametrize("damage", ["truncated", "another model"])
def test_weights_that_do_not_fit_are_refused_with_their_file(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    checkpoint.save_weights(checkpoint.weights_of(make_model(d_ff=8)), path)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"model\.safetensors"):
        checkpoint.load_weights(make_model(), path)


def test_half_precision_on_disk_loads_as_single(tmp_path: Path) -> None:
    model = make_model()
    path = tmp_path / "model.safetensors"
    checkpoint.save_weights({n: w.half() for n, w in checkpoint.weights_of(model).items()}, path)
    restored = make_model(seed=9)
    checkpoint.load_weights(restored, path)
    for name, weight in checkpoint.weights_of(restored).items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, checkpoint.weights_of(model)[name].half().float())


@pytest.mark.parametrize("content", ['{"model_type": "marian"}', "[1]", '{"model": 3}'])
def test_a_config_of_another_library_is_told_from_ours(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match="is not of a run of ours; a model from elsewhere is taken in by"):
        checkpoint.load_trained(tmp_path)


def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "source.tokenizer.json").write_text("{", encoding="utf-8")
    for name in ("source", "none"):
        with pytest.raises(UserError, match=f"{name}.tokenizer.json cannot be read as a tokenizer"):
            tokenizer.load(tmp_path / f"{name}.tokenizer.json")
