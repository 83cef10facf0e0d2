"""The options: the model's shape, how it is trained, and the presets.

Every option is one line: its name, its default, its unit or its choices. `--set name=value` sets any of them.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from attendant.model.errors import ConfigError

CHOICES = {
    "score": ("dot", "additive", "gaussian"),
    "positions": ("sinusoidal", "learned", "relative"),
    "norm": ("post", "pre"),
    "norm_kind": ("layer", "rms"),
    "activation": ("relu", "gelu", "silu", "gated_gelu", "gated_silu"),
    "tie": ("auto", "three", "embeddings", "two", "none"),
    "optimizer": ("adam", "sgd", "momentum", "adagrad", "rmsprop", "muon"),
    "schedule": ("paper", "cosine", "trapezoid"),
    "select": ("loss", "error"),
    "precision": ("auto", "fp32", "bf16"),
    "device": ("auto", "cpu", "cuda"),
}
RATES = {"paper": 1.0, "cosine": 1e-3, "trapezoid": 1e-3}  # default learning_rate of each schedule
SIZED_BY_RATE = ("adam", "rmsprop", "muon")  # optimizers whose updates move a weight by about the learning rate
HIGHEST_PEAK = 0.1  # highest peak rate of those optimizers: above it, the first updates ruin the weights
MOST_DISTANCE = 2**14  # of relative_distance
PAPER_FACTORS = (0.01, 100.0)  # learning_rate is a factor with schedule=paper; outside, a peak rate was meant


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    source_vocab: int = 0  # tokens; set from the source tokenizer
    target_vocab: int = 0  # tokens; set from the target tokenizer
    shared_vocab: bool = False  # one tokenizer for both sides
    d_model: int = 512  # features per position
    d_ff: int = 2048  # features inside the feed-forward
    heads: int = 8  # attention heads; divides d_model, unless head_size is given
    head_size: int = 0  # features of a head; 0: d_model / heads
    encoder_layers: int = 6
    decoder_layers: int = 6
    score: str = "dot"  # dot: q.k / sqrt(d_k); additive: v.tanh(q + k); gaussian: -|q - k|^2 / 2 / sqrt(d_k)
    positions: str = "sinusoidal"  # sinusoidal: fixed; learned: max_length rows; relative: T5's, a bias on the scores
    relative_buckets: int = 32  # positions=relative: distances that have a bias of their own
    relative_distance: int = 128  # positions=relative: tokens apart from which on all share one bias
    norm: str = "post"  # post: LayerNorm(x + f(x)), the paper's; pre: x + f(LayerNorm(x))
    norm_kind: str = "layer"  # layer: LayerNorm; rms: RMSNorm, without mean and bias
    activation: str = "relu"  # gated_gelu, gated_silu: gelu(x W) * (x U) in the feed-forward, gelu in its tanh form
    tie: str = "auto"  # three: both embeddings and the output; embeddings: both; two: target embedding and output; none
    bias: bool = True  # biases in projections, feed-forward and LayerNorm
    output_bias: bool = False  # a bias in the output projection, one number per target token
    scale_embeddings: bool = True  # token embeddings times sqrt(d_model)
    embedding_norm: bool = False  # LayerNorm of embeddings plus positions
    source_end: bool = True  # whether attention sees a source's end token, which is appended either way
    final_norm: bool = False  # norm=post: LayerNorm after each stack; norm=pre always has it
    dropout: float = 0.1  # p, on each sub-layer's output and on embeddings plus positions
    attention_dropout: float = 0.1  # p, on the attention weights
    ff_dropout: float = 0.1  # p, on the feed-forward's inner features
    max_length: int = 512  # tokens of one side, the end token included

    def problems(self) -> list[str]:
        found = _problems_of_choices(self)
        for name in ("source_vocab", "target_vocab", "d_model", "d_ff", "heads", "encoder_layers", "decoder_layers"):
            if getattr(self, name) < 1:
                found.append(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("dropout", "attention_dropout", "ff_dropout"):
            if not 0 <= getattr(self, name) < 1:
                found.append(f"{name} must be in [0, 1), not {getattr(self, name)}")
        found += self._problems_of_positions()
        if self.head_size < 0:
            found.append(f"head_size must be at least 0, not {self.head_size}")
        if self.heads > 0 and not self.head_size and self.d_model % self.heads:
            found.append(f"heads must divide d_model, but {self.heads} does not divide {self.d_model}")
        if self.max_length < 2:
            found.append(f"max_length must be at least 2, not {self.max_length}")
        if self.tie in ("three", "embeddings") and not self.shared_vocab:
            found.append(f"tie={self.tie} needs one tokenizer for both sides (--tokenizer); take tie=two or tie=none")
        return found

    def _problems_of_positions(self) -> list[str]:
        if self.positions == "sinusoidal" and self.d_model % 2:
            return [f"sinusoidal positions need an even d_model, not {self.d_model}"]
        if self.positions != "relative":
            return []
        found, buckets = [], self.relative_buckets
        if buckets < 4 or buckets % 2:
            found.append(f"relative_buckets must be an even number from 4, not {buckets}")
        if not buckets // 2 < self.relative_distance <= MOST_DISTANCE:
            found.append(
                f"relative_distance must be from {buckets // 2 + 1} (more than half the buckets) to {MOST_DISTANCE:,}, "
                f"not {self.relative_distance}"
            )
        return found

    def validate(self) -> ModelConfig:
        return _raise_if_any(self)

    @property
    def head(self) -> int:
        """Features of a head."""
        return self.head_size or self.d_model // self.heads

    @property
    def inner(self) -> int:
        """Features of all heads together: d_model, unless head_size is given."""
        return self.heads * self.head

    @property
    def gated(self) -> bool:
        """Whether the feed-forward has a gate."""
        return self.activation.startswith("gated_")

    @property
    def widened(self) -> int:
        """What the feed-forward's first matrix computes: d_ff features, and with a gate as many again."""
        return 2 * self.d_ff if self.gated else self.d_ff

    @property
    def tied(self) -> str:
        if self.tie == "auto":
            return "three" if self.shared_vocab else "two"
        return self.tie


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    steps: int = 100_000  # optimizer updates
    batch_tokens: int = 8192  # padded tokens of a batch: rows * (longest source + longest target)
    accumulate: int = 1  # batches per update
    one_target: bool = False  # an epoch uses one of a source's consecutive targets: the first with probability 1/2
    teacher_weight: float = 0.5  # with --distilled: weight of the teachers' distribution; the rest is the true target's
    optimizer: str = "adam"
    schedule: str = "paper"  # paper: d_model^-0.5 * min(step^-0.5, step * warmup^-1.5); cosine and trapezoid end at 0
    learning_rate: float = 0.0  # cosine, trapezoid: the peak; paper: a factor; 0: the default, 1e-3, 1e-3 or 1
    warmup: int = 4000  # updates
    decay: float = 0.3  # trapezoid: the fraction of the updates, at the end, over which the rate falls to 0
    momentum: float = 0.9  # optimizer=momentum, muon
    beta1: float = 0.9  # optimizer=adam; muon: for the parameters that it leaves to Adam
    beta2: float = 0.98  # likewise
    epsilon: float = 1e-9  # likewise, and optimizer=adagrad, rmsprop
    alpha: float = 0.99  # optimizer=rmsprop: decay of the squared gradient
    weight_decay: float = 0.0  # decoupled for adam (AdamW) and muon (matrices only); otherwise added to the gradient
    clip: float = 1.0  # largest gradient norm; 0: no limit
    label_smoothing: float = 0.1  # probability spread over the other classes
    precision: str = "auto"  # auto: bf16 if the device has instructions for it, else fp32
    device: str = "auto"  # auto: cuda if available, else cpu
    compile: bool = False  # torch.compile the model
    validate_every: int = 1000  # updates between checkpoints, each validated
    validate_sources: int = 0  # select=error: sources decoded per validation, evenly spaced over the file; 0: all
    ema: float = 0.0  # decay per update of a moving average of the weights, used in place of `average`; 0: none
    average: int = 5  # last checkpoints whose weights are averaged, for validation and as the result; 1: no averaging
    keep: int = 3  # last checkpoints kept on disk (at least as many as are averaged)
    patience: int = 0  # validations without improvement before stopping; 0: never stop early
    select: str = "loss"  # what the best checkpoint is best at: validation loss, or greedy sequence error
    select_ignore: str = ""  # select=error: a regular expression, removed from outputs and targets before comparison
    log_every: int = 50  # updates between lines of history
    seed: int = 1

    def __post_init__(self) -> None:
        if self.learning_rate == 0:
            object.__setattr__(self, "learning_rate", RATES.get(self.schedule, 1.0))

    def problems(self) -> list[str]:
        found = _problems_of_choices(self) + self._problems_of_rate()
        for name in ("steps", "batch_tokens", "accumulate", "warmup", "validate_every", "average", "keep", "log_every"):
            if getattr(self, name) < 1:
                found.append(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("momentum", "beta1", "beta2", "alpha", "label_smoothing", "ema"):
            if not 0 <= getattr(self, name) < 1:
                found.append(f"{name} must be in [0, 1), not {getattr(self, name)}")
        for name in ("epsilon", "weight_decay", "clip", "patience", "seed", "validate_sources"):
            if not 0 <= getattr(self, name) < math.inf:
                found.append(f"{name} must be a number from 0, not {getattr(self, name)}")
        for name in ("decay", "teacher_weight"):
            if not 0 <= getattr(self, name) <= 1:
                found.append(f"{name} must be in [0, 1], not {getattr(self, name)}")
        try:
            re.compile(self.select_ignore)
        except re.error as error:
            found.append(f"select_ignore takes a regular expression, and {self.select_ignore!r} is none: {error}")
        return found

    def _problems_of_rate(self) -> list[str]:
        if not 0 < self.learning_rate < math.inf:
            return [f"learning_rate must be above 0, not {self.learning_rate}"]
        low, high = PAPER_FACTORS if self.schedule == "paper" else (0, HIGHEST_PEAK)
        if self.optimizer not in SIZED_BY_RATE or low <= self.learning_rate <= high:
            return []
        if self.schedule == "paper":
            meant = f"a factor of the paper's rate, from {low:g} to {high:g}; take schedule=cosine to give a peak"
        else:
            meant = f"the peak rate, at most {high:g} with optimizer={self.optimizer}"
        return [f"learning_rate={self.learning_rate:g} cannot be meant: with schedule={self.schedule} it is {meant}"]

    def validate(self) -> TrainConfig:
        return _raise_if_any(self)


# The paper's base and big; the default model; and one that learns a small corpus in about a minute.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "d_model": 64, "d_ff": 128, "heads": 4, "encoder_layers": 2, "decoder_layers": 2,
        "dropout": 0.0, "attention_dropout": 0.0, "ff_dropout": 0.0, "label_smoothing": 0.0, "max_length": 128,
        "schedule": "cosine", "learning_rate": 2e-3, "warmup": 50, "steps": 1000, "batch_tokens": 1024,
        "validate_every": 200, "average": 1, "beta2": 0.99,
    },
    "g2p": {
        "d_model": 256, "d_ff": 512, "heads": 4, "encoder_layers": 4, "decoder_layers": 2, "max_length": 64,
        "norm": "pre", "dropout": 0.15, "attention_dropout": 0.0, "ff_dropout": 0.1,
        "optimizer": "muon", "momentum": 0.95, "weight_decay": 0.05, "schedule": "trapezoid", "learning_rate": 1.4e-3,
        "warmup": 400, "steps": 10_500, "decay": 0.96, "batch_tokens": 8192, "ema": 0.998, "average": 1,
        "select": "error", "validate_every": 500, "keep": 2,
    },
    "base": {},
    "big": {"d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3, "steps": 300_000},
}  # fmt: skip


def build(preset: str, overrides: dict[str, Any]) -> tuple[ModelConfig, TrainConfig]:
    """A preset with some options replaced; one ConfigError lists all that is wrong with it."""
    if preset not in PRESETS:
        raise ConfigError(f"--preset takes one of {', '.join(PRESETS)}, not {preset!r}.")
    values = {**PRESETS[preset], **overrides}
    if "learning_rate" not in overrides and values.get("schedule") != PRESETS[preset].get("schedule"):
        values.pop("learning_rate", None)  # the preset's rate is meant for the preset's schedule
    model_names = {field.name for field in dataclasses.fields(ModelConfig)}
    model = ModelConfig(**{k: v for k, v in values.items() if k in model_names})
    train = TrainConfig(**{k: v for k, v in values.items() if k not in model_names})
    found = [
        p for p in model.problems() if not p.startswith(("source_vocab", "target_vocab", "tie=three", "tie=embeddings"))
    ]
    _raise_all(found + train.problems())
    return model, train


def parse_setting(text: str) -> tuple[str, Any]:
    """'dropout=0.2' -> ('dropout', 0.2), typed as the option is."""
    name, sign, raw = text.partition("=")
    hints = {**typing.get_type_hints(ModelConfig), **typing.get_type_hints(TrainConfig)}
    settable = [n for n in hints if n not in ("source_vocab", "target_vocab", "shared_vocab")]
    if near := _meant(name, settable):
        raise ConfigError(f"--set {name}: there is no such option; did you mean {' or '.join(near)}?")
    if not sign or name not in settable:
        raise ConfigError(f"--set takes name=value with a name of {', '.join(settable)}, not {text!r}.")
    kind = hints[name]
    try:
        return name, _parse(kind, raw)
    except ValueError:
        wanted = {bool: "one of true, false", int: "a whole number", float: "a number"}[kind]
        raise ConfigError(f"--set {name}= takes {wanted}, not {raw!r}.") from None


def _meant(name: str, settable: list[str]) -> list[str]:
    """What an unknown name was probably meant to be: `layers` is a part of encoder_layers and of decoder_layers."""
    if name in settable:
        return []
    longer = [known for known in settable if f"_{name}_" in f"_{known}_"] if name else []
    return difflib.get_close_matches(name, settable, 1, 0.8) or longer


def to_json(config: ModelConfig | TrainConfig) -> dict[str, Any]:
    return dataclasses.asdict(config)


def model_from_json(values: dict[str, Any], path: Path) -> ModelConfig:
    return _from_json(ModelConfig, values, path)


def train_from_json(values: dict[str, Any], path: Path) -> TrainConfig:
    return _from_json(TrainConfig, values, path)


Config = TypeVar("Config", "ModelConfig", "TrainConfig")


def _from_json(kind: type[Config], values: dict[str, Any], path: Path) -> Config:
    known = {field.name for field in dataclasses.fields(kind)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ConfigError(f"{path} has options that this version does not know: {', '.join(unknown)}.")
    return kind(**values).validate()


def _parse(kind: type, raw: str) -> Any:
    if kind is bool:
        if raw not in ("true", "false"):
            raise ValueError
        return raw == "true"
    return kind(raw)


def _problems_of_choices(config: ModelConfig | TrainConfig) -> list[str]:
    names = [field.name for field in dataclasses.fields(config) if field.name in CHOICES]
    return [
        f"{name} takes one of {', '.join(CHOICES[name])}, not {getattr(config, name)!r}"
        for name in names
        if getattr(config, name) not in CHOICES[name]
    ]


def _raise_if_any(config: Config) -> Config:
    _raise_all(config.problems())
    return config


def _raise_all(found: list[str]) -> None:
    if found:
        raise ConfigError("; ".join(found) + ".")
