"""Dropout that does not dominate training on a CPU.

torch draws one random float per element, in one thread: for a batch of 4,608 positions of 256 features that takes as
long as the matrix products of a whole sub-layer. Here one random byte per element decides, eight from each 64-bit draw,
with p rounded to a multiple of 1/256: about four times faster, forward and backward together
(docs/decisions/004-training-speed.md). Devices other than the CPU use torch's own dropout.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Dropout(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        return x * random_mask(x.shape, self.p, x.dtype)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def random_mask(shape: torch.Size, p: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """0 with probability p, else 1 / (1 - p): the mask keeps the mean of what it multiplies."""
    count = shape.numel()
    draws = torch.empty((count + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    dropped_of_256 = min(max(round(p * 256), 1), 255)
    kept = draws.numpy().view(np.uint8)[:count] >= dropped_of_256
    return torch.from_numpy(kept).view(shape).to(dtype).mul_(256 / (256 - dropped_of_256))
