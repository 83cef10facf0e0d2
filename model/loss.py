"""Cross-entropy with label smoothing."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from model.tokenizer import PAD


def smoothed_cross_entropy(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """The summed loss of all real target positions: logits (B, T, V), target (B, T) -> ()

    The target class is wanted with probability 1 - smoothing, each of the K - 1 others with smoothing / (K - 1).
    torch spreads its share over all K classes, the target among them, so it gets K / (K - 1) as much to spread.
    """
    classes = logits.shape[-1]
    spread = smoothing * classes / (classes - 1) if classes > 1 else 0.0
    return F.cross_entropy(
        logits.flatten(0, 1), target.flatten(), ignore_index=PAD, reduction="sum", label_smoothing=spread
    )
