"""Dropout that does not dominate training on a CPU.

torch draws one random float per element, in one thread: for a batch of 4,608 positions of 256 features that takes as
long as the matrix products of a whole sub-layer. A share is as well decided by one random byte per element (the
share is then a multiple of 1/256), eight of which come with each 64-bit draw: about four times faster, forward and
backward together (docs/decisions/004-training-speed.md). Other devices use torch's own.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Dropout(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.share == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.share)
        return x * random_mask(x.shape, self.share)

    def extra_repr(self) -> str:
        return f"share={self.share}"


def random_mask(shape: torch.Size, share: float) -> Tensor:
    """0 with probability `share`, else 1 / (1 - share): the mask keeps the mean of what it multiplies."""
    count = shape.numel()
    draws = torch.empty((count + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    dropped_of_256 = min(max(round(share * 256), 1), 255)
    kept = draws.numpy().view(np.uint8)[:count] >= dropped_of_256
    mask = torch.from_numpy(kept).view(shape).to(torch.float32)
    return mask.mul_(256 / (256 - dropped_of_256))
