"""Tables of sinusoidal positions as other frameworks compute them: sines in the first half of the features."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sinusoids_in_halves(length: int, d_model: int) -> Tensor:
    """Marian's: sines in the first half of the features, cosines in the second."""
    position = torch.arange(length, dtype=torch.float64).unsqueeze(1)
    angle = position / 10000.0 ** (2 * torch.arange(d_model // 2, dtype=torch.float64) / d_model)
    return torch.cat([angle.sin(), angle.cos()], dim=1).float()


def fairseq_sinusoids(length: int, d_model: int, first: int) -> Tensor:
    """fairseq's: frequencies 10000^(-i / (half - 1)), sines then cosines, from position `first` on."""
    half = d_model // 2
    scale = math.log(10000) / max(half - 1, 1)
    frequency = torch.exp(torch.arange(half, dtype=torch.float64) * -scale)
    angle = torch.arange(first, first + length, dtype=torch.float64).unsqueeze(1) * frequency
    table = torch.cat([angle.sin(), angle.cos()], dim=1).float()
    return table if d_model % 2 == 0 else torch.cat([table, torch.zeros(length, 1)], dim=1)
