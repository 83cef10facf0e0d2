"""The commands that reproduce a run, derived from its config.json.

A command has the preset that is nearest to the run's options and a --set for each option that differs. Its files are
`runs/data/...` and `runs/NAME`, whatever the directories were called where it ran.
"""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

from attendant.model import checkpoint
from attendant.model.config import PRESETS, ModelConfig, TrainConfig, build, model_from_json, to_json, train_from_json
from attendant.model.errors import UserError
from attendant.model.training.history import phases, read_history

DATA, RUNS = "runs/data", "runs"


def commands(run: Path, name: str | None = None) -> list[str]:
    """The commands in order: of the model it was initialised from, of its teachers, the distillation, the run itself.

    Only those that the run has, and each once: the initial model may be one of the teachers. `name`: the run's name, if
    it was renamed since.
    """
    config = checkpoint.read_config(run) | ({"run": name} if name else {})
    distilled = config.get("distilled", {})
    before = [config.get("init_from", {}), *distilled.get("teachers", ())]
    return [
        *dict.fromkeys(command for each in before for command in each.get("commands", ())),
        *([distilled["command"]] if distilled else []),
        train_command(config),
    ]


def begun_with(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The `init_from` of a run's config, preceded by that model's own `init_from`, and so on: the earliest first."""
    before = config.get("init_from")
    return [*begun_with(before), before] if before else []


def train_command(config: dict[str, Any]) -> str:
    preset, changed = nearest_preset(config)
    data = (
        f"--distilled {quoted(RUNS, config['distilled']['name'])}"
        if "distilled" in config
        else (f"--data {quoted(DATA, config['data']['train']['file'])}")
    )
    begun = config.get("init_from")
    kinds = {} if begun or "distilled" in config else config["tokenizers"]
    flags = [f"--{name}-tokenizer {kind}".replace("--shared-", "--") for name, kind in kinds.items()]
    if "normalize" in config:
        flags.append(f"--normalize {','.join(config['normalize'])}")
    valid = config["data"]["valid"]
    parts = [
        "attendant train",
        f"--preset {preset}",
        data,
        *([f"--init-from {quoted(RUNS, begun['name'])}"] if begun else []),
        *([] if valid.get("split") else [f"--valid {quoted(DATA, valid['file'])}"]),
        f"--out {quoted(RUNS, run_name(config))}",
        *flags,
        *(f"--set {name}={_text(value)}" for name, value in changed.items()),
        "--resume",
    ]
    return " ".join(parts)


def run_name(config: dict[str, Any]) -> str:
    """The name of the run's directory, or of the nearest preset where config.json does not record it."""
    return config.get("run") or nearest_preset(config)[0]


def nearest_preset(config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The preset that differs from the run in the fewest options, and the run's values of those options."""
    path = Path(checkpoint.CONFIG)  # options that config.json lacks have their defaults
    options = to_json(model_from_json(config["model"], path)) | to_json(train_from_json(config["train"], path))
    inherited = [n for n in config["model"] if not n.endswith("dropout")] if "init_from" in config else []
    options = {n: value for n, value in options.items() if not n.endswith("_vocab") and n not in inherited}
    found = {}
    for preset in PRESETS:
        model, train = build(preset, {})
        values = {**to_json(model), **to_json(train)}
        found[preset] = {name: value for name, value in options.items() if values[name] != value}
    preset = min(found, key=lambda name: len(found[name]))
    return preset, found[preset]


def options_of(run: Path, changes: dict[str, Any]) -> tuple[ModelConfig, TrainConfig]:
    """A run's saved options, with `changes` applied."""
    saved, path = checkpoint.read_config(run), run / checkpoint.CONFIG
    if "imported" in saved:
        raise UserError(f"{run} holds an imported model, which cannot be trained; name another --out.")
    values = to_json(model_from_json(saved["model"], path)) | to_json(train_from_json(saved["train"], path))
    if changes.get("schedule", values["schedule"]) != values["schedule"]:
        values["learning_rate"] = 0.0  # its default: the saved rate is meant for the saved schedule
    values |= changes
    model = ModelConfig(**{f.name: values[f.name] for f in dataclasses.fields(ModelConfig)})
    train = TrainConfig(**{f.name: values[f.name] for f in dataclasses.fields(TrainConfig)})
    return model.validate(), train.validate()


def changed_on_the_way(run: Path) -> bool:
    """Whether the run, a model that it began with or a teacher was resumed with other options.

    Then the commands, which have the last options, do not reproduce the run.
    """
    config = checkpoint.read_config(run)
    begun, teachers = begun_with(config), config.get("distilled", {}).get("teachers", ())
    return (
        any("phases" in before for before in begun)
        or any(teacher["changed_on_the_way"] for teacher in teachers)
        or len(phases(read_history(run / checkpoint.HISTORY))) > 1
    )


def quoted(directory: str, name: str) -> str:
    """A path as a shell reads it."""
    return shlex.quote(f"{directory}/{name}")


def _text(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return shlex.quote(text)
