"""The model's arrays, by parameter name, as the graph builders read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attendant.model.checkpoint import weights_of
from attendant.model.transformer import Transformer


def arrays_of(model: Transformer) -> dict[str, np.ndarray[Any, Any]]:
    """Every parameter by name, a tied one once, and both position tables, learned or sinusoidal.

    Relative positions are `encoder_bias` (H, 2M + 1) and `decoder_bias` (H, M + 1): the bias of a key's position -
    query's from -M on, where M, the largest distance that is told apart, stands for all beyond it.
    """
    arrays = {name: weight.cpu().numpy() for name, weight in weights_of(model).items()}
    if model.encoder_bias is not None and model.decoder_bias is not None:
        largest = model.config.relative_distance
        distance = torch.arange(-largest, largest + 1)
        arrays["encoder_bias"] = model.encoder_bias.of_distances(distance).detach().cpu().numpy()
        arrays["decoder_bias"] = model.decoder_bias.of_distances(distance[: largest + 1]).detach().cpu().numpy()
        return arrays
    for side in ("source_embedding", "target_embedding"):
        arrays[f"{side}.positions"] = getattr(model, side).positions.detach().cpu().numpy()
    return arrays
