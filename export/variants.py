"""The precisions of a bundle: how their parts are computed, and how far from torch they may be."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from export.builder import Array, GraphBuilder
from export.graphs import Parts
from export.quantize import Int8Parts, Range
from model.config import ModelConfig

MakeParts = Callable[[GraphBuilder, ModelConfig, dict[str, Array]], Parts]

# The largest distance of a certified log-probability from torch's.
TOLERANCES = {"fp32": 1e-4, "int8": 0.5}
# The share of held-out inputs whose answer may differ from torch's.
DIFFERING = {"fp32": 0.0, "int8": 0.1}


def make_parts(variant: str, calibration: dict[str, Range]) -> MakeParts:
    if variant == "fp32":
        return Parts
    return partial(Int8Parts, ranges=calibration, fused=True)
