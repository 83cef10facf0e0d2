"""Calibration for int8: the range of each matrix product's input, from its values on real pairs.

The f32 graph runs over the pairs once for the minimum and the maximum of each input, and again for a histogram between
them. A range that reaches outliers rounds all other values more coarsely, so several narrower ranges are tried, and the
one with the least squared error is chosen: of rounding inside the range, and of clipping outside.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime as ort

from export.builder import Array, GraphBuilder, WeightStore
from export.bundle import BundleError
from export.graphs import Parts, build_graph
from model.config import ModelConfig
from model.tokenizer import BOS, EOS

ACTIVATION_LEVELS = 255
CACHED = "cached"
WEIGHTS = "weights.bin"
BINS = 4096  # of a histogram: about 16 for each level
SHARES = tuple(round(1 - 0.05 * i, 2) for i in range(11))  # fractions of minimum and maximum that are tried as a range
AS_GOOD = 1.01  # times the least error: a range up to here is as good, and another processor may choose it

Pair = tuple[list[int], list[int]]  # ids of a source and a target


@dataclass(frozen=True)
class Range:
    """The range that an activation's levels cover; 0 is always a level."""

    low: float
    high: float
    cached: list[float] = field(default_factory=list)  # each channel's largest absolute output, of keys and values

    @property
    def scale(self) -> float:
        return max(max(self.high, 0) - min(self.low, 0), 1e-8) / ACTIVATION_LEVELS

    @property
    def zero_point(self) -> int:
        return round(-min(self.low, 0) / self.scale)

    def rounded(self, values: Array) -> Array:
        """The values quantized and dequantized again."""
        levels: Array = np.clip(np.rint(values / self.scale) + self.zero_point, 0, ACTIVATION_LEVELS)
        return (levels - self.zero_point) * self.scale


@dataclass
class Observed:
    """Statistics of a matrix product's input."""

    low: float = np.inf
    high: float = -np.inf
    counts: Array = field(default_factory=lambda: np.zeros(BINS, np.int64))  # of values in equal bins from low to high
    cached: Array = field(default_factory=lambda: np.zeros(0))

    def choices(self) -> list[Range]:
        """The range with the least error, then those with an error of up to AS_GOOD times that."""
        edges = np.linspace(self.low, self.high, BINS + 1)
        middles, cached = (edges[1:] + edges[:-1]) / 2, [float(f"{value:.4g}") for value in self.cached]
        lows, highs = ((end,) if end == 0 else [share * end for share in SHARES] for end in (self.low, self.high))
        ranges = [Range(float(low), float(high), cached) for low in lows for high in highs]
        errors = [float((self.counts * (each.rounded(middles) - middles) ** 2).sum()) for each in ranges]
        order = sorted(range(len(ranges)), key=errors.__getitem__)
        return [ranges[i] for i in order if errors[i] <= AS_GOOD * errors[order[0]]]


class ObservedParts(Parts):
    """The f32 parts, with the input of every matrix product as a graph output.

    Products that compute the decoder's cached keys and values also output the largest absolute value of each channel.
    """

    def __init__(self, graph: GraphBuilder, config: ModelConfig, weights: dict[str, Array], seen: list[str]) -> None:
        super().__init__(graph, config, weights)
        self.seen = seen

    def product(self, x: str, name: str, weight: Array, bias_name: str, bias: Array | None) -> str:
        self._observe(x, name)
        y = super().product(x, name, weight, bias_name, bias)
        if is_cached(name):
            g = self.g
            most = g.op("ReduceMax", g.op("Abs", y), g.constant([0, 1]), keepdims=0)
            g.output(most, f"{CACHED} {name}", "float32", [weight.shape[1]])
        return y

    def logits(self, x: str) -> str:
        self._observe(x, "output.weight")
        return super().logits(x)

    def _observe(self, x: str, name: str) -> None:
        self.seen.append(name)
        self.g.output(self.g.op("Identity", x), f"input {name}", "float32", ["rows", "positions", "features"])


def calibrate(
    config: ModelConfig, weights: dict[str, Array], pairs: list[Pair], start: Sequence[int] = ()
) -> dict[str, Range]:
    """The range of every matrix product's input. `start` tokens come before every target."""
    return {name: found.choices()[0] for name, found in observe(config, weights, pairs, start).items()}


def observe(
    config: ModelConfig, weights: dict[str, Array], pairs: list[Pair], start: Sequence[int] = ()
) -> dict[str, Observed]:
    """The input of every matrix product over some pairs, each run alone so that padding is no part of it."""
    seen: list[str] = []
    session = _session(config, weights, seen)
    found = {name: Observed() for name in seen}
    for name in filter(is_cached, seen):
        found[name].cached = np.zeros(2 * config.d_model)

    def look(kind: str, names: list[str], at: Callable[[Observed, Array], None]) -> None:
        for source, target in pairs:
            feeds = {
                "source": np.array([[*source, EOS]]),
                "source_length": np.array([len(source) + 1]),
                "target": np.array([[BOS, *start, *target]]),
            }
            for name, value in zip(names, session.run([f"{kind} {name}" for name in names], feeds), strict=True):
                at(found[name], value)

    def widen(observed: Observed, values: Array) -> None:
        observed.low, observed.high = np.minimum(observed.low, values.min()), np.maximum(observed.high, values.max())

    def count(observed: Observed, values: Array) -> None:
        observed.counts += np.histogram(values, BINS, (observed.low, observed.high))[0]

    def largest(observed: Observed, values: Array) -> None:
        observed.cached = np.maximum(observed.cached, values[-len(observed.cached) :])  # queries are not cached

    look("input", seen, widen)
    for name, each in found.items():
        if not np.isfinite([each.low, each.high]).all():
            raise BundleError(
                f"the input of {name} becomes NaN or infinity on the samples: int8 cannot hold that; train it again, "
                "or --precision fp32 writes the f32 variant alone."
            )
    look("input", seen, count)
    look(CACHED, [*filter(is_cached, seen)], largest)
    return found


def _session(config: ModelConfig, weights: dict[str, Array], seen: list[str]) -> ort.InferenceSession:
    """The full graph with `ObservedParts`, loaded; appends the names of its products to `seen`.

    The weights are in a temporary file beside it: a protobuf message has at most 2 GiB, and a model may have more.
    """
    store = WeightStore()
    graph = build_graph("full", config, weights, store, WEIGHTS, lambda g, c, w: ObservedParts(g, c, w, seen))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "full.onnx")
        path.write_bytes(graph.SerializeToString())
        store.write(path.with_name(WEIGHTS))
        return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def is_cached(product: str) -> bool:
    """Whether a product's outputs are keys and values that the decoder caches."""
    own = product.startswith("decoder.") and product.endswith("self_attention.project_in.weight")
    return own or product.endswith("keys_values")
