"""The int8 variant: integer matrix products, with scales that never depend on what else is in the batch.

Activations become uint8 by a scale and a zero point that are fixed by calibration (export/calibration.py). Weights
become int8 with a scale per column, in 7 bits (-63 to 63): without VNNI instructions, two uint8 x int8 products are
added in 16 bits, where 2 * 255 * 63 fits and 2 * 255 * 127 does not. Integer sums are exact in any order, so a row's
bits are the same in every batch. Attention, normalisation and softmax stay in f32.
"""

from __future__ import annotations

import numpy as np

from export.builder import CONTRIB, Array, GraphBuilder
from export.calibration import Range
from export.graphs import Parts
from model.config import ModelConfig

WEIGHT_LEVELS = 63


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
        """With `unit` (out,), each column of the result is divided by its unit."""
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
        """ReLU needs no node: its range starts at 0, so quantizing the next product's input clips negative values."""
        return x if self.config.activation == "relu" else super()._activate(x)
