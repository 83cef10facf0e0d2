"""An exponential moving average of a model's weights."""

from __future__ import annotations

from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

Weights = dict[str, Tensor]


class MovingAverage:
    """average = decay * average + (1 - decay) * weights after each update.

    The first updates use a lower decay, (1 + step) / (10 + step), so that the average soon forgets the random weights
    that training began with.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.weights: Weights = {}  # by parameter name; empty before the first update

    def update(self, weights: Weights, step: int) -> None:
        """Take in the weights after update number `step`, counted from 0."""
        if not self.weights:
            self.weights = {name: value.clone() for name, value in weights.items()}
        decay = min(self.decay, (1 + step) / (10 + step))
        get_ema_multi_avg_fn(decay)(list(self.weights.values()), [weights[name] for name in self.weights], None)
