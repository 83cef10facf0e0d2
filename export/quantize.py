"""The int8 variant: integer matrix products, with scales that never depend on what else is in the batch.

Activations become uint8 by a scale and a zero point that are fixed here, by calibration on real inputs. Weights become
int8 with a scale per column, in 7 bits (-63 to 63): without VNNI instructions, two uint8 x int8 products are added in
16 bits, where 2 * 255 * 63 fits and 2 * 255 * 127 does not. Integer sums are exact in any order, so a row's bits are
the same in every batch. Attention, normalisation and softmax stay in f32.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnxruntime as ort

from export.builder import CONTRIB, Array, GraphBuilder
from export.graphs import Parts, build_graph
from model.config import ModelConfig
from model.tokenizer import BOS, EOS

WEIGHT_LEVELS = 63
ACTIVATION_LEVELS = 255
CACHED = "cached"


@dataclass(frozen=True)
class Range:
    """The least and the greatest value that an activation took. The levels cover both, and 0, which is one of them."""

    low: float
    high: float
    cached: list[float] = field(default_factory=list)  # the largest output of each channel, of what is cached of it

    @property
    def scale(self) -> float:
        return max(max(self.high, 0) - min(self.low, 0), 1e-8) / ACTIVATION_LEVELS

    @property
    def zero_point(self) -> int:
        return round(-min(self.low, 0) / self.scale)


class ObservedParts(Parts):
    """The f32 parts, with the least and the greatest input of every matrix product as outputs.

    Where keys and values of the decoder come from, also with the largest output of each channel, whatever its sign.
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
        for kind in ("ReduceMin", "ReduceMax"):
            self.g.output(self.g.op(kind, x, keepdims=0), f"{kind} {name}", "float32", [])


def calibrate(
    config: ModelConfig, weights: dict[str, Array], pairs: list[tuple[list[int], list[int]]]
) -> dict[str, Range]:
    """The range of every matrix product's input over some pairs, each run alone so that padding is no part of it."""
    seen: list[str] = []
    model = build_graph("full", config, weights, make_parts=lambda g, c, w: ObservedParts(g, c, w, seen))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = [f"{kind} {name}" for kind in ("ReduceMin", "ReduceMax") for name in seen]
    low, high = np.full(len(seen), np.inf), np.full(len(seen), -np.inf)
    cached = [name for name in seen if is_cached(name)]
    most: dict[str, Array] = {name: np.zeros(2 * config.d_model) for name in cached}
    for source, target in pairs:
        feeds = {
            "source": np.array([[*source, EOS]]),
            "source_length": np.array([len(source) + 1]),
            "target": np.array([[BOS, *target]]),
        }
        outputs = session.run([*wanted, *(f"{CACHED} {name}" for name in cached)], feeds)
        found = np.array(outputs[: len(wanted)])
        low, high = np.minimum(low, found[: len(seen)]), np.maximum(high, found[len(seen) :])
        for name, largest in zip(cached, outputs[len(wanted) :], strict=True):
            most[name] = np.maximum(most[name], largest[-2 * config.d_model :])  # queries are not cached
    return {
        name: Range(float(a), float(b), [float(f"{value:.4g}") for value in most.get(name, ())])
        for name, a, b in zip(seen, low, high, strict=True)
    }


def is_cached(product: str) -> bool:
    """Whether a product's outputs are keys and values that the decoder caches."""
    own = product.startswith("decoder.") and product.endswith("self_attention.project_in.weight")
    return own or product.endswith("keys_values")


def quantize_columns(weight: Array) -> tuple[Array, Array]:
    """(in, out) -> int8 of the same shape, and the scale of each column"""
    scale = np.maximum(np.abs(weight).max(axis=0), 1e-8) / WEIGHT_LEVELS
    return np.rint(weight / scale).astype(np.int8), scale.astype(np.float32)


class Int8Parts(Parts):
    """The parts with integer matrix products, in standard operators or in onnxruntime's fused one."""

    def __init__(
        self, graph: GraphBuilder, config: ModelConfig, weights: dict[str, Array], ranges: dict[str, Range], fused: bool
    ) -> None:
        super().__init__(graph, config, weights)
        self.ranges, self.fused = ranges, fused

    def product(
        self, x: str, name: str, weight: Array, bias_name: str, bias: Array | None, unit: Array | None = None
    ) -> str:
        """`unit` is what each column of the result is a multiple of."""
        g, values = self.g, self.ranges[name]
        scale, zero = self._scalar(values.scale), g.constant(values.zero_point, "uint8")
        levels, columns = quantize_columns(weight)
        if unit is not None:
            name_of_scale, bias_name, columns = f"{name} scale in units", f"{bias_name} in units", columns / unit
            bias = None if bias is None else bias / unit
        else:
            name_of_scale = f"{name} scale"
        quantized, stored = g.op("QuantizeLinear", x, scale, zero), g.weight(f"{name} int8", levels)
        bias_value = "" if bias is None else g.weight(bias_name, bias)
        if self.fused:
            inputs = [quantized, stored, scale, g.weight(name_of_scale, columns), zero]
            inputs += ["", bias_value] if bias_value else []
            return str(g.op("MatMulIntegerToFloat", *inputs, domain=CONTRIB))
        sums = g.cast(g.op("MatMulInteger", quantized, stored, zero), "float32")
        y = str(g.op("Mul", sums, g.weight(f"{name} rescale", columns * np.float32(values.scale))))
        return str(g.op("Add", y, bias_value)) if bias_value else y

    def logits(self, x: str) -> str:
        table = self._tied("output.weight")
        bias = self.weights["output.bias"] if self.config.output_bias else None
        return self.product(x, "output.weight", np.ascontiguousarray(self.weights[table].T), "output.bias", bias)

    def _tokens(self, ids: str, name: str) -> str:
        """The embedding from int8 rows of the table; the output has its own copy, in its product's layout."""
        g, table = self.g, self._tied(f"{name}.tokens.weight")
        levels, scale = quantize_columns(np.ascontiguousarray(self.weights[table].T))
        rows = g.weight(f"{table} int8 rows", np.ascontiguousarray(levels.T))  # a row's bytes lie together
        picked = g.cast(g.op("Gather", rows, ids, axis=0), "float32")  # (B, T, D)
        factors = (scale * np.float32(self.scale))[:, None]
        return str(g.op("Mul", picked, g.op("Gather", g.weight(f"{table} row scale", factors), ids, axis=0)))

    def _activate(self, x: str) -> str:
        """ReLU is what quantization does anyway: below a zero point of 0 there is no level."""
        return x if self.config.activation == "relu" else super()._activate(x)
