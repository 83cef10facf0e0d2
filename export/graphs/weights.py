"""The model's arrays, by parameter name, as the graph builders read them."""

from __future__ import annotations

from typing import Any

import numpy as np

from attendant.model.checkpoint import weights_of
from attendant.model.transformer import Transformer


def arrays_of(model: Transformer) -> dict[str, np.ndarray[Any, Any]]:
    """Every parameter by name, a tied one once, and both position tables, learned or sinusoidal."""
    arrays = {name: weight.cpu().numpy() for name, weight in weights_of(model).items()}
    for side in ("source_embedding", "target_embedding"):
        arrays[f"{side}.positions"] = getattr(model, side).positions.detach().cpu().numpy()
    return arrays
