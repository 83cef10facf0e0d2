"""Channels that are far larger than the others are divided, and the product that reads them is multiplied.

int8 has one scale for each token, so one channel 30 times as large as the others leaves them 4 of 127 levels; trained
Transformers have such channels. Where nothing but products reads a channel, a power of two moves from what writes it to
the weights that read it, or back: f32 computes the same, to the last bit. No sample is needed. A model without such
channels stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attendant.model import checkpoint
from attendant.model.checkpoint import TrainedModel
from attendant.model.transformer import Transformer

LEAST, MOST = 2, 12  # powers of two: less is left as it is, and more than a model needs
LINEAR_ACTIVATION = "relu"  # multiplied inputs are multiplied outputs


@dataclass(frozen=True)
class Written:
    """Channels: rows of a weight with its bias, or a norm's weight and bias."""

    weights: list[nn.Parameter]
    rows: slice

    def sizes(self) -> Tensor:
        parts = [weight.detach()[self.rows].unsqueeze(-1).flatten(1) for weight in self.weights]
        found: Tensor = torch.cat(parts, 1).norm(dim=1)
        return found


@dataclass(frozen=True)
class Read:
    """Who reads them: columns of weights, some rows of each; or rows that they are multiplied with one by one."""

    weights: list[nn.Parameter]
    rows: slice
    by_row: bool = False

    def sizes(self) -> Tensor:
        if self.by_row:
            return Written(self.weights, self.rows).sizes()
        return torch.stack([weight.detach()[self.rows].norm(dim=0) for weight in self.weights]).amax(0)


def load_balanced(run: Path) -> TrainedModel:
    """The model that is exported."""
    trained = checkpoint.load_trained(run)
    balance(trained.model)
    return trained


@torch.no_grad()
def balance(model: Transformer) -> int:
    """In place, the weights that change as copies; returns how many channels were far larger or smaller."""
    changed = 0
    for written, read in pairs(model):
        powers = powers_of(written.sizes(), read.sizes())
        if found := int(powers.count_nonzero()):
            changed += found
            factor = torch.exp2(powers)
            for weight in written.weights:
                scale_rows(weight, written.rows, 1 / factor)
            for weight in read.weights:
                if read.by_row:
                    scale_rows(weight, read.rows, factor)
                else:
                    copied = weight.detach().clone()
                    copied[read.rows] *= factor
                    weight.data = copied
    return changed


def powers_of(written: Tensor, read: Tensor) -> Tensor:
    """By which power of two each channel is divided: half of what it is larger as written, and smaller as read."""
    alive = (written > 0) & (read > 0)
    if not bool(alive.any()):
        return torch.zeros_like(written)
    sizes = [torch.log2(each.where(alive, each[alive].median()) / each[alive].median()) for each in (written, read)]
    powers = ((sizes[0] - sizes[1]) / 2).round().clamp(-MOST, MOST)
    return powers.where(powers.abs() >= LEAST, 0)


def pairs(model: Transformer) -> Iterator[tuple[Written, Read]]:
    """All channels that only products read."""
    config, whole = model.config, slice(None)
    layers: list[Any] = [*model.encoder, *model.decoder]
    for layer in layers:
        crossed = hasattr(layer, "cross_attention")
        queries, keys, values = (slice(i * config.inner, (i + 1) * config.inner) for i in range(3))
        if config.norm == "pre":
            yield (
                Written(parameters(layer.self_residual.norm), whole),
                Read([layer.self_attention.project_in.weight], whole),
            )
            yield Written(parameters(layer.feed_residual.norm), whole), Read([layer.feed_forward.widen.weight], whole)
        if config.norm == "pre" and crossed:
            read = Read([layer.cross_attention.project_in.weight], queries)
            yield Written(parameters(layer.cross_residual.norm), whole), read
        for attention in [layer.self_attention, *([layer.cross_attention] if crossed else [])]:
            projected = parameters(attention.project_in)
            if config.score == "dot":
                yield Written(projected, keys), Read(projected, queries, by_row=True)
            yield Written(projected, values), Read([attention.project_out.weight], whole)
        if config.gated or config.activation == LINEAR_ACTIVATION:
            widened = slice(config.d_ff, None) if config.gated else whole
            yield (
                Written(parameters(layer.feed_forward.widen), widened),
                Read([layer.feed_forward.narrow.weight], whole),
            )
    if isinstance(model.encoder_norm, nn.LayerNorm | nn.RMSNorm):
        cross = [layer.cross_attention.project_in.weight for layer in layers if hasattr(layer, "cross_attention")]
        yield Written(parameters(model.encoder_norm), whole), Read(cross, slice(config.inner, None))


def parameters(module: nn.Module) -> list[nn.Parameter]:
    return list(module.parameters(recurse=False))


def scale_rows(weight: nn.Parameter, rows: slice, factor: Tensor) -> None:
    copied = weight.detach().clone()
    copied[rows] *= factor.view(-1, *[1] * (weight.dim() - 1))
    weight.data = copied
