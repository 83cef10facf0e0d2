"""How the graphs of each precision are built."""

from __future__ import annotations

import onnx

from attendant.export.graphs.builder import Array, WeightStore
from attendant.export.graphs.graphs import build_graph
from attendant.export.graphs.kernels import build_kernel_graph, has_kernels
from attendant.export.graphs.parts import Parts
from attendant.export.graphs.quantize import Int8Parts
from attendant.export.graphs.unpacking import PackedParts
from attendant.export.precisions import PRECISIONS
from attendant.export.signature import GRAPHS, REQUIRED
from attendant.model.config import ModelConfig


def graphs_of(variant: str, config: ModelConfig) -> list[str]:
    """The graphs that a variant has: those of our own operators, where they compute such a model."""
    kernels = PRECISIONS[variant].dtype == "float32" and has_kernels(config)
    return [name for name in GRAPHS if kernels or name in REQUIRED]


def build_variant_graph(
    variant: str,
    graph: str,
    config: ModelConfig,
    weights: dict[str, Array],
    store: WeightStore | None = None,
    location: str = "",
) -> onnx.ModelProto:
    precision = PRECISIONS[variant]
    if graph not in REQUIRED:
        return build_kernel_graph(graph, config, weights, precision.quantized, store, location)
    plain = PackedParts if "kernel_step" in graphs_of(variant, config) else Parts
    parts = Int8Parts if precision.quantized else plain
    return build_graph(graph, config, weights, store, location, parts, precision.dtype)
