"""A run on disk: its options, its weights, and all that is needed to resume it.

    RUN/config.json                  model and training options, what was trained on, versions
    RUN/source.tokenizer.json        and target.tokenizer.json
    RUN/history.jsonl                a line per logged step and per validation
    RUN/samples.tsv                  some pairs of the validation file, for export
    RUN/step-00001000/               a checkpoint: model, optimizer and (with ema) ema.safetensors, state.json
    RUN/stopped-00001234/            the same, written where a signal stopped the run; gone after the next checkpoint
    RUN/best-00001000/               the best so far: model.safetensors (averaged), state.json

A released model is the same without the steps: its model.safetensors lies beside config.json.
Directories are written under another name and renamed, so one with its final name is complete. Nothing is pickled.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attendant.model import config as options
from attendant.model.config import ModelConfig
from attendant.model.errors import UserError
from attendant.model.files import write_directory, write_json
from attendant.model.text.tokenizer import Tokenizer
from attendant.model.text.tokenizer import load as load_tokenizer
from attendant.model.transformer import Transformer

CONFIG, STATE = "config.json", "state.json"
MODEL, OPTIMIZER, EMA = "model.safetensors", "optimizer.safetensors", "ema.safetensors"
SOURCE_TOKENIZER, TARGET_TOKENIZER = "source.tokenizer.json", "target.tokenizer.json"
HISTORY = "history.jsonl"
SAMPLES = "samples.tsv"


@dataclass
class TrainedModel:
    """A model and its tokenizers, ready to use."""

    config: ModelConfig
    model: Transformer
    source: Tokenizer
    target: Tokenizer
    start: list[int] = field(default_factory=list)  # of an imported model: ids that every target starts with


def load_trained(run: Path) -> TrainedModel:
    """The released weights of a run, else its best, else its last; in eval mode."""
    kept = read_config(run)
    config = options.model_from_json(kept["model"], run / CONFIG)
    model = model_of_file(config, find_weights(run))
    return TrainedModel(
        config,
        model.eval(),
        load_tokenizer(run / SOURCE_TOKENIZER),
        load_tokenizer(run / TARGET_TOKENIZER),
        kept.get("generation", {}).get("target_prefix", []),
    )


def read_model_config(run: Path) -> ModelConfig:
    return options.model_from_json(read_config(run)["model"], run / CONFIG)


def release(run: Path, out: Path, step: int | None = None) -> None:
    """Write a run's best weights, or those of a step, in half precision, with only the files that using them needs."""
    trained = load_trained(run)
    if step is not None:
        load_weights(trained.model, checkpoint_path(run, step) / MODEL)
    half = {name: weight.half() for name, weight in weights_of(trained.model).items()}

    def fill(directory: Path) -> None:
        save_weights(half, directory / MODEL)
        for name in (CONFIG, SOURCE_TOKENIZER, TARGET_TOKENIZER, HISTORY, SAMPLES):
            if (run / name).exists():  # an imported model has no history, and perhaps no samples
                shutil.copyfile(run / name, directory / name)

    write_directory(out, fill)


def find_weights(run: Path) -> Path:
    last = latest(run)
    candidates = [run, *reversed(checkpoints(run, "best")), *([last] if last else [])]
    for directory in candidates:
        if (directory / MODEL).is_file():
            return directory / MODEL
    raise UserError(f"{run} has no {MODEL}, no best-* and no step-* checkpoint; is it a finished training run?")


def read_config(run: Path) -> dict[str, Any]:
    path = run / CONFIG
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is not there; name the directory that `attendant train --out` wrote.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(found, dict) or not isinstance(found.get("model"), dict):
        raise UserError(f"{path} is not of a run of ours; a model from elsewhere is taken in by `attendant import`.")
    return found


def load_weights(model: Transformer, path: Path) -> None:
    """Fill a model from a file; half precision on disk becomes the model's own precision."""
    set_weights(model, _read_weights(model, path))


def model_of_file(config: ModelConfig, path: Path) -> Transformer:
    """A model whose weights are the file's own pages: f32 is held once."""
    with torch.device("meta"):
        wanted = Transformer(config)
    return model_of(config, _read_weights(wanted, path))


def model_of(config: ModelConfig, weights: dict[str, Tensor]) -> Transformer:
    """A model with these very weights; nothing is drawn at random first."""
    with torch.device("meta"):
        model = Transformer(config)
    filled = {id(weight): nn.Parameter(weights[name].float()) for name, weight in model.named_parameters()}
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            module.register_parameter(name, filled[id(weight)])
    return model


def _read_weights(model: Transformer, path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read as safetensors: {error}.") from None
    wanted = weights_of(model)
    if set(wanted) != set(tensors) or any(wanted[n].shape != tensors[n].shape for n in wanted):
        raise UserError(f"{path} does not hold the weights that the run's {CONFIG} describes.")
    return tensors


def weights_of(model: Transformer) -> dict[str, Tensor]:
    """Each parameter once, a tied one under its first name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def set_weights(model: Transformer, weights: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])


def average_with(weights: dict[str, Tensor], others: list[Path]) -> dict[str, Tensor]:
    """The mean of some weights and those in some files."""
    if not others:
        return weights
    total = {name: value.double() for name, value in weights.items()}
    for path in others:
        for name, value in load_file(path).items():
            total[name] += value.to(total[name].device)
    return {name: (value / (len(others) + 1)).float() for name, value in total.items()}


def save_weights(weights: dict[str, Tensor], path: Path) -> None:
    save_file({name: value.cpu().contiguous() for name, value in weights.items()}, path)
    path.chmod(0o644)  # safetensors makes files that only their owner can read


def checkpoints(run: Path, kind: str = "step") -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(p for p in run.glob(f"{kind}-*") if p.name.removeprefix(f"{kind}-").isdecimal())


def latest(run: Path) -> Path | None:
    """The checkpoint that a resumed run goes on from, if there is one."""
    every = checkpoints(run, "step") + checkpoints(run, "stopped")
    return max(every, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def checkpoint_path(run: Path, step: int, kind: str = "step") -> Path:
    return run / f"{kind}-{step:08d}"


def save_training(
    run: Path,
    step: int,
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    ema: dict[str, Tensor] | None = None,
    kind: str = "step",
) -> Path:
    """A checkpoint from which training goes on exactly as if it had not stopped."""

    def fill(directory: Path) -> None:
        save_weights(weights_of(model), directory / MODEL)
        save_file(_flatten(optimizer), directory / OPTIMIZER)
        if ema:
            save_weights(ema, directory / EMA)
        write_json(state, directory / STATE)

    path = checkpoint_path(run, step, kind)
    write_directory(path, fill)
    return path


def load_optimizer(checkpoint: Path, optimizer: torch.optim.Optimizer) -> None:
    _unflatten(optimizer, load_file(checkpoint / OPTIMIZER))


def load_ema(checkpoint: Path, device: torch.device) -> dict[str, Tensor]:
    """The moving average in a checkpoint; empty where the run had none."""
    path = checkpoint / EMA
    return load_file(path, device=str(device)) if path.exists() else {}


def read_state(checkpoint: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    return state


def save_best(run: Path, step: int, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
    def fill(directory: Path) -> None:
        save_weights(weights, directory / MODEL)
        write_json(state, directory / STATE)

    write_directory(checkpoint_path(run, step, "best"), fill)


def prune(run: Path, keep_last: int, best_step: int) -> None:
    """Remove all checkpoints but the best and the last `keep_last`; those written at a signal go too."""
    best = checkpoint_path(run, best_step, "best")
    others = [p for p in checkpoints(run, "best") if p != best] + checkpoints(run, "stopped")
    for path in checkpoints(run)[:-keep_last] + others:
        shutil.rmtree(path)


def _flatten(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as named tensors: '<parameter number>.<name>'."""
    return {
        f"{number}.{name}": torch.as_tensor(value).cpu().contiguous()
        for number, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
        if value is not None
    }


def _unflatten(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
