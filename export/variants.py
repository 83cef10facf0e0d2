"""The precisions of a bundle: how their graphs are built, and how far from torch they may be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import onnx

from export.builder import Array, WeightStore
from export.fast import FastInt8Parts, FastParts, can_be_fast
from export.graphs import Parts, build_graph
from export.quantize import Int8Parts, Range
from export.signature import GRAPHS, REQUIRED
from model.config import ModelConfig


@dataclass(frozen=True)
class Precision:
    tolerance: float  # the largest distance of a certified log-probability from torch's
    differing: float  # the share of held-out inputs whose answer may differ from torch's
    real: str = "float32"  # what a number is that is not an integer
    row_distance: float = 0.0  # how far a row's log-probability alone may be from that in a batch; 0: the same bits
    quantized: bool = False
    fast_cache: str = ""  # what the fast graphs cache; as it is, where nothing is said


PRECISIONS = {
    "fp32": Precision(tolerance=1e-4, differing=0.0),
    "int8": Precision(tolerance=0.5, differing=0.1, quantized=True, fast_cache="int8"),
    "fp16": Precision(tolerance=0.05, differing=0.02, real="float16", row_distance=1e-2),
}
DEFAULT = ("fp32", "int8")  # fp16 is for CUDA


def graphs_of(variant: str, config: ModelConfig) -> list[str]:
    """The graphs that a variant has: fast ones for the CPU, where the model allows them."""
    fast = PRECISIONS[variant].real == "float32" and can_be_fast(config)
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
    return build_graph(graph, config, weights, store, location, parts, precision.real, cache)
