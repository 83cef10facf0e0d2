"""Opens an ONNX graph to look at its nodes, to answer more of its values and to multiply some of them by new inputs.

Standard library only, for those who have no onnx package. Field numbers are those of onnx.proto, as in onnx_file.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from attendant.export.onnx_file import (
    BYTES,
    GRAPH_INITIALIZER,
    MODEL_GRAPH,
    TENSOR_DIMS,
    TENSOR_NAME,
    TENSOR_TYPE,
    VARINT,
    read_fields,
)

GRAPH_NODE, GRAPH_INPUT, GRAPH_OUTPUT = 1, 11, 12
NODE_INPUT, NODE_OUTPUT, NODE_OP = 1, 2, 4
TENSOR_RAW = 9
VALUE_NAME, VALUE_TYPE = 1, 2
TYPE_TENSOR, TENSOR_ELEMENT, TENSOR_SHAPE = 1, 1, 2
SHAPE_DIM, DIM_VALUE = 1, 1
FLOAT32, FLOAT16 = 1, 10

Field = tuple[int, memoryview | bytes | int]


@dataclass(frozen=True)
class Node:
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    fields: tuple[Field, ...] = ()

    def encode(self) -> bytes:
        names = [(NODE_INPUT, name.encode()) for name in self.inputs]
        names += [(NODE_OUTPUT, name.encode()) for name in self.outputs]
        others = [field for field in self.fields if field[0] not in (NODE_INPUT, NODE_OUTPUT)]
        return encode_fields([*names, *(others or [(NODE_OP, self.op.encode())])])


class OnnxGraph:
    """A graph whose nodes are read, and to which outputs and factors can be added; `encode` gives the new file."""

    def __init__(self, data: bytes) -> None:
        self._model = list(read_fields(memoryview(data)))
        graph = next(value for number, value in self._model if number == MODEL_GRAPH)
        assert isinstance(graph, memoryview)
        self._fields = list(read_fields(graph))
        self.nodes = [_node(value) for number, value in self._fields if number == GRAPH_NODE]
        self.weights = {_name(value, TENSOR_NAME) for number, value in self._fields if number == GRAPH_INITIALIZER}
        self.outputs = {_name(value, VALUE_NAME) for number, value in self._fields if number == GRAPH_OUTPUT}
        self._added: list[Field] = []

    def small_weight(self, name: str) -> tuple[int, tuple[int, ...], bytes] | None:
        """The element type, shape and content of a weight that is kept in the graph itself."""
        for number, value in self._fields:
            if number == GRAPH_INITIALIZER and isinstance(value, memoryview) and _name(value, TENSOR_NAME) == name:
                fields = list(read_fields(value))
                shape = tuple(size for field, size in fields if field == TENSOR_DIMS and isinstance(size, int))
                kind = next(each for field, each in fields if field == TENSOR_TYPE and isinstance(each, int))
                raw = next((each for field, each in fields if field == TENSOR_RAW and not isinstance(each, int)), None)
                return None if raw is None else (kind, shape, bytes(raw))
        return None

    def producer(self, value: str) -> int | None:
        """The index of the node that computes a value; None for inputs and weights."""
        return next((at for at, node in enumerate(self.nodes) if value in node.outputs), None)

    def consumers(self, value: str) -> list[int]:
        return [at for at, node in enumerate(self.nodes) if value in node.inputs]

    def answer(self, values: Iterable[str]) -> None:
        """Make values outputs of the graph."""
        for value in values:
            if value not in self.outputs:
                self.outputs.add(value)
                self._added.append((GRAPH_OUTPUT, encode_fields([(VALUE_NAME, value.encode())])))

    def multiply(self, output: str, place: int, factor: str, shape: tuple[int, ...], element: int = FLOAT32) -> str:
        """Multiply an input of the node that computes `output` by a new input of the graph; the name of the product.

        A node is added right before it, so that later nodes have other indices.
        """
        node = self.producer(output)
        assert node is not None
        value, product = self.nodes[node].inputs[place], f"{factor} product"
        inputs = list(self.nodes[node].inputs)
        inputs[place] = product
        self.nodes[node] = replace(self.nodes[node], inputs=tuple(inputs))
        self.nodes.insert(node, Node("Mul", (value, factor), (product,)))
        dims = encode_fields([(SHAPE_DIM, encode_fields([(DIM_VALUE, size)])) for size in shape])
        kind = encode_fields([(TYPE_TENSOR, encode_fields([(TENSOR_ELEMENT, element), (TENSOR_SHAPE, dims)]))])
        self._added.append((GRAPH_INPUT, encode_fields([(VALUE_NAME, factor.encode()), (VALUE_TYPE, kind)])))
        return product

    def encode(self) -> bytes:
        nodes: list[Field] = [(GRAPH_NODE, node.encode()) for node in self.nodes]
        others = [field for field in self._fields if field[0] != GRAPH_NODE]
        graph = encode_fields([*nodes, *others, *self._added])
        return encode_fields([(number, graph if number == MODEL_GRAPH else value) for number, value in self._model])


def encode_fields(fields: Iterable[Field]) -> bytes:
    """A protobuf message of numbers and of bytes."""
    parts = []
    for number, value in fields:
        if isinstance(value, int):
            parts += [_varint(number << 3 | VARINT), _varint(value)]
        else:
            parts += [_varint(number << 3 | BYTES), _varint(len(value)), bytes(value)]
    return b"".join(parts)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _node(value: memoryview | int) -> Node:
    assert isinstance(value, memoryview)
    fields = tuple(read_fields(value))

    def names(wanted: int) -> tuple[str, ...]:
        return tuple(bytes(text).decode() for number, text in fields if number == wanted and not isinstance(text, int))

    return Node(names(NODE_OP)[0], names(NODE_INPUT), names(NODE_OUTPUT), fields)


def _name(value: memoryview | int, field: int) -> str:
    assert isinstance(value, memoryview)
    return next(
        bytes(text).decode() for number, text in read_fields(value) if number == field and not isinstance(text, int)
    )
