"""Packed weights (packing.py) in the plain graphs: nodes that onnxruntime runs once, when it loads a graph."""

from __future__ import annotations

from attendant.export.graphs.builder import GraphBuilder
from attendant.export.graphs.packing import BLOCK, GROUP, pack_f32
from attendant.export.graphs.parts import Matrix, Parts


def unpack_int8(g: GraphBuilder, packed: str, rows: int, columns: int) -> str:
    """(blocks, groups, 2, 16, 4) -> (in, out)"""
    ordered = g.op("Transpose", packed, perm=[1, 4, 0, 2, 3])  # (groups, 4, blocks, 2, 16)
    whole = g.reshape(ordered, [rows + -rows % GROUP, columns + -columns % BLOCK])
    return cut(g, cut(g, whole, 0, rows, GROUP), 1, columns, BLOCK)


def unpack_f32(g: GraphBuilder, packed: str, columns: int) -> str:
    """(blocks, in, 32) -> (in, out)"""
    whole = g.reshape(g.op("Transpose", packed, perm=[1, 0, 2]), [0, columns + -columns % BLOCK])
    return cut(g, whole, 1, columns, BLOCK)


def cut(g: GraphBuilder, x: str, axis: int, size: int, unit: int) -> str:
    """Without the padding of an axis to a multiple of `unit`."""
    return g.op("Slice", x, g.constant([0]), g.constant([size]), g.constant([axis])) if size % unit else x


class PackedParts(Parts):
    """The parts in f32, with the weights of products packed, as the kernels of the same variant read them."""

    def weight_of(self, matrix: Matrix) -> str:
        return unpack_f32(self.g, self._packed(matrix), matrix.shape[1])

    def operands(self, matrix: Matrix) -> list[str]:
        return [self._packed(matrix), self.bias_of(matrix)]

    def _packed(self, matrix: Matrix) -> str:
        return self.g.weight(f"{matrix.name} packed", pack_f32(matrix.weight))
