"""Training that begins with a trained model (`attendant train --init-from`): its weights, tokenizers and shape.

Dropout and training options are the new run's own. Imported models are refused: the corpus reader knows only our own
tokenizers, not the special and start tokens that an importer sets up.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from attendant.model import checkpoint
from attendant.model.config import ModelConfig, model_from_json, to_json
from attendant.model.errors import ConfigError, UserError
from attendant.model.files import file_digest
from attendant.model.training import recipe
from attendant.model.training.history import phases, read_history
from attendant.model.transformer import Transformer


def shape_of(trained: Path, chosen: ModelConfig, settings: dict[str, Any]) -> ModelConfig:
    """The trained model's options with the dropout of `chosen`; ConfigError if one of `settings` contradicts them."""
    begun = model_from_json(read_own_config(trained)["model"], trained / checkpoint.CONFIG)
    values = to_json(begun)
    for name, value in settings.items():
        if name in values and not name.endswith("dropout") and values[name] != value:
            raise ConfigError(
                f"--set {name}={value}: {trained} has {name}={values[name]}, and --init-from keeps a model's shape."
            )
    return dataclasses.replace(begun, **{k: v for k, v in to_json(chosen).items() if k.endswith("dropout")})


def describe(trained: Path) -> dict[str, Any]:
    """For config.json: which model it is and how it was made, with the model that it was itself initialised from."""
    config, path = read_own_config(trained), trained / checkpoint.HISTORY
    history = read_history(path) if path.exists() else []
    stopped_at_once: dict[str, Any] = {}
    last = next((entry for entry in reversed(history) if entry["kind"] != "options"), stopped_at_once)
    changes = phases(history)
    return {
        "name": recipe.run_name(config),
        "sha256": file_digest(checkpoint.find_weights(trained)),
        "commands": recipe.commands(trained),
        **{name: last[name] for name in ("step", "epoch", "seconds") if last},
        **({"phases": changes} if len(changes) > 1 else {}),
        **({"init_from": config["init_from"]} if "init_from" in config else {}),
    }


def load_weights(model: Transformer, trained: Path) -> None:
    """Load the weights into a model of the same shape; UserError if any is NaN or infinite."""
    path = checkpoint.find_weights(trained)
    checkpoint.load_weights(model, path)
    for name, weight in checkpoint.weights_of(model).items():
        if not weight.isfinite().all():
            raise UserError(f"{path}: the weight {name} holds NaN or infinity; --init-from takes a sound model.")


def read_own_config(trained: Path) -> dict[str, Any]:
    config = checkpoint.read_config(trained)
    if "imported" in config:
        raise UserError(f"{trained} was imported; --init-from takes a model that attendant train made.")
    return config
