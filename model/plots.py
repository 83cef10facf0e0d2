"""The pictures of the notes, as PNG files: training curves, positional encodings, attention heat maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from model.checkpoint import HISTORY, TrainedModel, load_trained
from model.errors import UserError
from model.history import read_history
from model.reference import greedy
from model.tokenizer import BOS, EOS
from model.transformer import AttentionWeights, sinusoids

matplotlib.use("Agg")
INCH = 2.2  # side of one head's heat map


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
            (f"validation {name} (%)".replace("_", " "), [e for e in decoded if name in e], name) for name in names
        ]
    return [_draw_curves(name, lines, out / f"{name}.png") for name, lines in curves.items()]


def _draw_curves(title: str, lines: list[tuple[str, list[dict[str, Any]], str]], path: Path) -> Path:
    figure, axes = _canvas(7, 4)
    for label, entries, name in lines:
        axes.plot([e["step"] for e in entries], [e[name] for e in entries], label=label, linewidth=1.2)
    axes.set(xlabel="step", ylabel=title.replace("_", " "))
    axes.grid(alpha=0.3)
    axes.legend()
    return _save(figure, path)


def plot_positions(out: Path) -> list[Path]:
    """Columns 6 to 9 of a 32-dimensional encoding over 60 positions, and the 50 x 512 encoding whole."""
    figure, axes = _canvas(7, 3)
    encoding = sinusoids(60, 32).numpy()
    for column in range(6, 10):
        axes.plot(encoding[:, column], label=f"column {column}")
    axes.set(xlabel="position", ylabel="value")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
    curves = _save(figure, out / "position_curves.png")

    figure, axes = _canvas(8, 3.2)
    image = axes.imshow(sinusoids(50, 512).numpy(), cmap="RdBu", aspect="auto", vmin=-1, vmax=1)
    axes.set(xlabel="feature", ylabel="position")
    figure.colorbar(image)
    return [curves, _save(figure, out / "position_heat_map.png")]


def plot_attention(run: Path, source: str, out: Path) -> list[Path]:
    """Where every head of every layer looks while the model reads a source and writes its greedy answer."""
    trained = load_trained(run)
    weights, source_tokens, target_tokens = attention_of(trained, source)
    kinds = {
        "encoder": (weights.encoder, source_tokens, source_tokens),
        "decoder": (weights.decoder, target_tokens, target_tokens),
        "cross": (weights.cross, target_tokens, source_tokens),
    }
    return [
        _draw_heads(layers, queries, keys, out / f"attention_{kind}.png")
        for kind, (layers, queries, keys) in kinds.items()
    ]


@torch.inference_mode()
def attention_of(trained: TrainedModel, source: str) -> tuple[AttentionWeights, list[str], list[str]]:
    """The weights for a source and its greedy target, with the tokens that the rows and columns stand for."""
    ids = trained.source.encode(source)
    if len(ids) >= trained.config.max_length:
        raise UserError(f"--source has {len(ids)} tokens, and the model reads {trained.config.max_length - 1}.")
    written = list(greedy(trained.model, ids, trained.config.max_length - 1).ids)  # the start token takes a place
    weights = AttentionWeights()
    trained.model(torch.tensor([[*ids, EOS]]), torch.tensor([[BOS, *written]]), weights)
    source_tokens = [trained.source.token(i) for i in (*ids, EOS)]
    target_tokens = [trained.target.token(i) for i in (BOS, *written)]
    return weights, source_tokens, target_tokens


def _draw_heads(layers: list[Tensor], queries: list[str], keys: list[str], path: Path) -> Path:
    """A grid of heat maps, a row per layer and a column per head; queries go down, keys across."""
    heads = layers[0].shape[1]
    figure = Figure(figsize=(INCH * heads + 1, INCH * len(layers) + 0.6), layout="constrained")
    grid = figure.subplots(len(layers), heads, squeeze=False)
    for layer, (row, weights) in enumerate(zip(grid, layers, strict=True)):
        for head, axes in enumerate(row):
            image = axes.imshow(weights[0, head].numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=8)
            axes.set_xticks(range(len(keys)), map(_short, keys), fontsize=6, rotation=90)
            axes.set_yticks(range(len(queries)), map(_short, queries), fontsize=6)
    figure.colorbar(image, ax=grid, shrink=0.6)
    return _save(figure, path)


def _short(token: str) -> str:
    return {"<start of text>": "start", "<end of text>": "end", "<unknown token>": "?"}.get(token, token)


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=130)
    return path
