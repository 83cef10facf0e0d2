"""How the graphs of each precision are built."""

from __future__ import annotations

from functools import partial
from typing import Any

import onnx

from export.builder import Array, WeightStore
from export.calibration import Range
from export.fast import FastInt8Parts, FastParts, can_be_fast
from export.graphs import Parts, build_graph
from export.precisions import PRECISIONS
from export.quantize import Int8Parts
from export.signature import GRAPHS, REQUIRED
from model.config import ModelConfig


def graphs_of(variant: str, config: ModelConfig) -> list[str]:
    """The graphs that a variant has: fast ones for the CPU, where the model allows them."""
    fast = PRECISIONS[variant].dtype == "float32" and can_be_fast(config)
    return [name for name in GRAPHS if fast or name in REQUIRED]


def build_variant_graph(
    variant: str,
    graph: str,
    config: ModelConfig,
    weights: dict[str, Array],
    calibration: dict[str, Range],
    store: WeightStore | None = None,
    location: str = "",
) -> onnx.ModelProto:
    precision = PRECISIONS[variant]
    fast = graph.startswith("fast_")
    if precision.quantized:
        parts: Any = partial(FastInt8Parts if fast else Int8Parts, ranges=calibration, fused=True)
    else:
        parts = FastParts if fast else Parts
    cache = precision.fast_cache if fast else ""
    return build_graph(graph, config, weights, store, location, parts, precision.dtype, cache)
