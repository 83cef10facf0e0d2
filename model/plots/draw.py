"""Plots as PNG files: training curves, positional encodings, attention heat maps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from attendant.model.checkpoint import HISTORY, TrainedModel, load_trained
from attendant.model.errors import UserError
from attendant.model.plots import fonts
from attendant.model.plots.labels import label
from attendant.model.search.reference import greedy
from attendant.model.text.tokenizer import BOS, EOS, UNK
from attendant.model.text.unknown import named
from attendant.model.training.history import read_history
from attendant.model.transformer import AttentionWeights, sinusoids

matplotlib.use("Agg")
HEAD_INCHES = 2.2  # minimum side of one head's heat map
LINE_INCHES, LETTER_INCHES = 0.11, 0.055  # height of a label, and its length per letter
UNITS = {"loss": "loss (nats per token)", "error_rate": "error rate (%)"}


def plot_history(run: Path, out: Path) -> list[Path]:
    """loss.png: training and validation loss; learning_rate.png; error_rate.png where validation decoded."""
    path = run / HISTORY
    if not path.exists():
        raise UserError(f"{path} is not there; name the directory that `attendant train --out` wrote.")
    entries = read_history(path)
    training = [e for e in entries if e["kind"] == "train"]
    validation = [e for e in entries if e["kind"] == "valid"]
    curves: dict[str, list[tuple[str, list[dict[str, Any]], str]]] = {
        "loss": [("training, smoothed labels", training, "loss"), ("validation", validation, "loss")],
        "learning_rate": [("learning rate", training, "learning_rate")],
    }
    decoded = [e for e in validation if "sequence_error_rate" in e]
    if decoded:
        names = [name for name in decoded[-1] if "error_rate" in name]
        curves["error_rate"] = [
            (f"validation {name}".replace("_", " "), [e for e in decoded if name in e], name) for name in names
        ]
    return [_draw_curves(name, lines, out / f"{name}.png") for name, lines in curves.items()]


def _draw_curves(title: str, lines: list[tuple[str, list[dict[str, Any]], str]], path: Path) -> Path:
    figure, axes = _canvas(7, 4)
    for described, entries, name in lines:
        axes.plot([e["step"] for e in entries], [e[name] for e in entries], label=described, linewidth=1.2)
    name = title.replace("_", " ")
    axes.set(xlabel="step", ylabel=UNITS.get(title, name))
    axes.grid(alpha=0.3)
    figure.suptitle(name.capitalize(), fontsize=11)
    if len(lines) > 1:
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return _save(figure, path)


def plot_positions(out: Path) -> list[Path]:
    """Columns 6 to 9 of a 32-dimensional encoding over 60 positions, and the 50 x 512 encoding whole."""
    figure, axes = _canvas(7, 3)
    encoding = sinusoids(60, 32).numpy()
    for column in range(6, 10):
        axes.plot(encoding[:, column], label=f"column {column}")
    axes.set(xlabel="position", ylabel="value")
    figure.suptitle("Positional encoding: columns 6 to 9 of 32", fontsize=11)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    curves = _save(figure, out / "position_curves.png")

    figure, axes = _canvas(8, 3.2)
    image = axes.imshow(sinusoids(50, 512).numpy(), cmap="RdBu", aspect="auto", vmin=-1, vmax=1)
    axes.set(xlabel="feature", ylabel="position")
    figure.suptitle("Positional encoding: 50 positions of 512 features", fontsize=11)
    figure.colorbar(image, label="value")
    return [curves, _save(figure, out / "position_heat_map.png")]


@dataclass(frozen=True)
class Attention:
    """Attention weights of a source and its greedy answer, with the labels of rows and columns."""

    weights: AttentionWeights
    source: list[str]  # the encoder's input tokens, the end token last
    read: list[str]  # the decoder's input tokens, the start token first
    produced: list[str]  # the decoder's output token at each step


def plot_attention(run: Path, source: str, out: Path, allow_unknown: bool = False) -> list[Path]:
    """Where every head of every layer looks while the model reads a source and writes its greedy answer."""
    found = attention_of(load_trained(run), source, allow_unknown)
    families, missing = fonts.families_for([*found.source, *found.produced])
    if missing:
        print(fonts.note(missing))
    kinds = {
        "encoder": ("Encoder self-attention", found.weights.encoder, found.source, found.source),
        "decoder": ("Decoder self-attention", found.weights.decoder, found.produced, found.read),
        "cross": ("Decoder-to-encoder attention", found.weights.cross, found.produced, found.source),
    }
    names = {
        "encoder": ("source token", "source token attended to"),
        "decoder": ("target token produced", "target token attended to"),
        "cross": ("target token produced", "source token attended to"),
    }
    with matplotlib.rc_context({"font.family": families}):
        return [
            _draw_heads(
                title,
                layers,
                Axis(names[kind][0], [fonts.readable(text, missing) for text in queries]),
                Axis(names[kind][1], [fonts.readable(text, missing) for text in keys]),
                out / f"attention_{kind}.png",
            )
            for kind, (title, layers, queries, keys) in kinds.items()
        ]


@torch.inference_mode()
def attention_of(trained: TrainedModel, source: str, allow_unknown: bool = False) -> Attention:
    """The weights at each step of the greedy answer to a source; UserError if the service would refuse the source."""
    ids = trained.source.encode(source)
    if not ids:
        raise UserError("--source is empty once it is normalized; give a text.")
    if len(ids) >= trained.config.max_length:
        raise UserError(f"--source has {len(ids)} tokens, and the model reads {trained.config.max_length - 1}.")
    if UNK in ids and not allow_unknown:
        lacking = named(trained.source.unknown_pieces(source))
        raise UserError(
            f"--source has what the model's vocabulary lacks: {lacking}; leave it out, or add --allow-unknown."
        )
    start = tuple(trained.start)
    answer = greedy(trained.model, ids, trained.config.max_length - 1 - len(start), start)  # BOS takes a position
    produced = [*start, *answer.ids, *([EOS] if answer.finish_reason == "stop" else [])]
    read = [BOS, *produced[:-1]]
    weights = AttentionWeights()
    trained.model(torch.tensor([[*ids, EOS]]), torch.tensor([read]), weights)
    return Attention(
        weights,
        [label(trained.source, i) for i in (*ids, EOS)],
        [label(trained.target, i) for i in read],
        [label(trained.target, i) for i in produced],
    )


@dataclass(frozen=True)
class Axis:
    name: str
    labels: list[str]

    @property
    def inches(self) -> float:
        """Long enough for labels not to touch."""
        return max(HEAD_INCHES, LINE_INCHES * len(self.labels))

    @property
    def margin(self) -> float:
        """Inches for the longest label."""
        return LETTER_INCHES * max(map(len, self.labels))


def _draw_heads(title: str, layers: list[Tensor], queries: Axis, keys: Axis, path: Path) -> Path:
    """A grid of heat maps, a row per layer and a column per head; queries go down, keys across."""
    heads = layers[0].shape[1]
    width, height = keys.inches + queries.margin, queries.inches + keys.margin
    figure = Figure(figsize=(width * heads + 1.2, height * len(layers) + 0.8), layout="constrained")
    grid = figure.subplots(len(layers), heads, squeeze=False)
    for layer, (row, weights) in enumerate(zip(grid, layers, strict=True)):
        for head, axes in enumerate(row):
            image = axes.imshow(weights[0, head].numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=8)
            axes.set_xticks(range(len(keys.labels)), keys.labels, fontsize=6, parse_math=False)
            for text in axes.get_xticklabels():
                text.set_rotation(90 if len(text.get_text()) > 1 else 0)
            axes.set_yticks(range(len(queries.labels)), queries.labels, fontsize=6, parse_math=False)
    figure.suptitle(title, fontsize=11)
    figure.supylabel(queries.name, fontsize=9)
    figure.supxlabel(keys.name, fontsize=9)
    figure.colorbar(image, ax=grid, shrink=0.6, label="attention weight")
    return _save(figure, path)


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=130)
    return path
