"""Cross-entropy with label smoothing, and with teachers' distributions for distillation."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from attendant.model.text.tokenizer import PAD


def smoothed_cross_entropy(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """The summed loss of all non-padding target positions: logits (B, T, V), target (B, T) -> ()

    The target class is wanted with probability 1 - smoothing, each of the K - 1 others with smoothing / (K - 1).
    torch spreads its smoothing over all K classes, the target included, so it is given K / (K - 1) times as much.
    """
    classes = logits.shape[-1]
    spread = smoothing * classes / (classes - 1) if classes > 1 else 0.0
    return F.cross_entropy(
        logits.flatten(0, 1), target.flatten(), ignore_index=PAD, reduction="sum", label_smoothing=spread
    )


def distilled_cross_entropy(
    logits: Tensor, target: Tensor, tokens: Tensor, probabilities: Tensor, weight: float, smoothing: float
) -> Tensor:
    """(1 - weight) * the loss of the true target + weight * the cross-entropy with the teachers' distribution.

    logits (B, T, V), target (B, T), the teachers' tokens and probabilities (B, T, K) -> ()
    """
    by_teachers = -(probabilities * logits.log_softmax(-1).gather(-1, tokens)).sum()
    return (1 - weight) * smoothed_cross_entropy(logits, target, smoothing) + weight * by_teachers
