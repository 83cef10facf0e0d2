"""The int8 variant in standard operators: integer matrix products, with one scale for each token.

The input of a product becomes whole numbers of -127 to 127 by a scale of its own for each row, from that row's largest
absolute value. So a row's numbers never depend on what else is in the batch, and nothing is calibrated. Weights are
int8 with a scale for each column (packing.py). Integer sums are exact in any order. Attention, normalisation, softmax
and the plain graphs' KV caches stay in f32.
"""

from __future__ import annotations

import numpy as np

from attendant.export.graphs.builder import Array, GraphBuilder
from attendant.export.graphs.packing import BLOCK, pack, pad_columns, quantize_columns
from attendant.export.graphs.parts import Matrix, Parts
from attendant.export.graphs.unpacking import cut, unpack_int8

ACTIVATION_LEVELS = 127
SMALLEST = 1e-30  # largest absolute value of a row of zeros
ZERO_POINT = 128  # products read unsigned bytes


def quantize_rows(g: GraphBuilder, x: str) -> tuple[str, str]:
    """(..., features) -> whole numbers of -127 to 127, still f32, and the scale of each row, (..., 1)"""
    largest = g.op("ReduceMax", g.op("Abs", x), g.constant([-1]), keepdims=1)
    largest = g.op("Max", largest, g.constant(SMALLEST, "float"))
    levels = g.constant(float(ACTIVATION_LEVELS), "float")
    return g.op("Round", g.op("Mul", x, g.op("Div", levels, largest))), g.op("Div", largest, levels)


def integer_product(
    g: GraphBuilder, x: str, shape: tuple[int, int], packed: str, scale: str, bias: str | None = None
) -> str:
    """x (..., in) times a packed weight (in, out) -> (..., out)"""
    rows, columns = shape
    levels, row_scale = quantize_rows(g, x)
    unsigned = g.cast(g.op("Add", levels, g.constant(float(ZERO_POINT), "float")), "uint8")
    sums = g.op("MatMulInteger", unsigned, unpack_int8(g, packed, rows, columns), g.constant(ZERO_POINT, "uint8"))
    # Not times the product of the scales: onnxruntime takes that for MatMulIntegerToFloat, which has one row's scale.
    y = g.op("Mul", g.op("Mul", g.cast(sums, "float32"), cut(g, scale, 0, columns, BLOCK)), row_scale)
    return y if bias is None else g.op("Add", y, cut(g, bias, 0, columns, BLOCK))


class Int8Parts(Parts):
    """The parts with integer matrix products and an int8 embedding."""

    def operands(self, matrix: Matrix) -> list[str]:
        """Packed weight, and scale, sum and bias of each column."""
        return [self.g.weight(name, array) for name, array in self._stored(matrix).items()]

    def product(self, x: str, matrix: Matrix) -> str:
        stored = self._stored(matrix)
        packed, scale, _, bias = stored
        used = [packed, scale] if matrix.bias is None else [packed, scale, bias]
        return integer_product(self.g, x, matrix.shape, *(self.g.weight(name, stored[name]) for name in used))

    def output_operands(self) -> list[str]:
        return self.operands(self._output())

    def logits(self, x: str) -> str:
        return self.product(x, self._output())

    def _output(self) -> Matrix:
        table = self.weights[self._tied("output.weight")]
        bias = self.weights["output.bias"] if self.config.output_bias else None
        return Matrix("output.weight", table.T, "output.bias", bias)

    def _stored(self, matrix: Matrix) -> dict[str, Array]:
        return self.g.store.once(matrix.name, lambda: stored_product(matrix))

    def embedding_operands(self, name: str) -> list[str]:
        """The table, packed as a weight (D, V), the output's own where they are tied, and a scale for each token."""
        table = self._tied(f"{name}.tokens.weight")
        weight = self.weights[table]
        matrix = self._output() if table == self._tied("output.weight") else Matrix(table, weight.T, "", None)
        packed, scale, *_ = stored = self._stored(matrix)
        factors = stored[scale][: len(weight), None] * np.float32(self.scale)
        return [self.g.weight(packed, stored[packed]), self.g.weight(f"{table} row scale", factors)]

    def _tokens(self, ids: str, name: str) -> str:
        words, width = self.weights[self._tied(f"{name}.tokens.weight")].shape
        packed, scale = self.embedding_operands(name)
        return int8_tokens(self.g, ids, packed, scale, (words, width))


def int8_tokens(g: GraphBuilder, ids: str, packed: str, scale: str, shape: tuple[int, int]) -> str:
    """Embeddings of ids (...), from a packed table of this shape (V, D) -> (..., D)"""
    words, width = shape
    columns = g.op("Gather", unpack_int8(g, packed, width, words), g.reshape(ids, [-1]), axis=1)
    rows = g.cast(g.op("Transpose", columns, perm=[1, 0]), "float32")
    ids_shape = g.op("Concat", g.op("Shape", ids), g.constant([width]), axis=0)
    return g.op("Mul", g.op("Reshape", rows, ids_shape), g.op("Gather", scale, ids, axis=0))


def stored_product(matrix: Matrix) -> dict[str, Array]:
    """The arrays of a product, by name: packed weight, and scale, sum and bias of each packed column."""
    levels, scale = quantize_columns(matrix.weight)
    if matrix.bias is None:
        bias = pad_columns(np.zeros(matrix.shape[1], np.float32))
        bias_name = f"zeros {len(bias)}"
    else:
        bias, bias_name = pad_columns(matrix.bias), matrix.bias_name
    return {
        f"{matrix.name} packed": pack(levels),
        f"{matrix.name} scale": pad_columns(scale, 1),
        f"{matrix.name} sums": pad_columns(levels.sum(axis=0, dtype=np.int32)),
        bias_name: bias,
    }
