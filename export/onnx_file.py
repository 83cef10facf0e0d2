"""Reads just enough of an ONNX file to tell whether it is one and where its weights are. Standard library only.

An ONNX file is a protobuf message. A message is a sequence of fields, each a key (number and wire type) and a value;
the numbers below are those of onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MODEL_IR_VERSION, MODEL_GRAPH, MODEL_OPSETS, MODEL_FUNCTIONS = 1, 7, 8, 25
# {message: {field number: the message in that field}}, for every path that leads to a tensor
INSIDE: dict[str, dict[int, str]] = {
    "model": {MODEL_GRAPH: "graph", MODEL_FUNCTIONS: "function"},
    "function": {7: "node"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
    "entry": {},
}
ENTRY_KEY, ENTRY_VALUE = 1, 2
GRAPH_INITIALIZER, TENSOR_DIMS, TENSOR_TYPE, TENSOR_NAME, TENSOR_EXTERNAL = 5, 1, 2, 8, 13
TYPES = {1: "float32", 3: "int8", 10: "float16"}  # of the weights that are kept outside
DEEPEST = 64


class NotOnnxError(Exception):
    pass


def external_locations(data: bytes) -> set[str]:
    """The files that an ONNX model's tensors refer to."""
    view = memoryview(data)
    numbers = {number for number, _ in read_fields(view)}
    if not {MODEL_IR_VERSION, MODEL_GRAPH, MODEL_OPSETS} <= numbers:
        raise NotOnnxError("it lacks a version, a graph or an operator set")
    found: set[str] = set()
    _collect(view, "model", found, 0)
    return found


@dataclass(frozen=True)
class Stored:
    """Where a weight lies in a file beside its graph."""

    location: str
    offset: int  # bytes
    kind: str  # as numpy names it
    shape: tuple[int, ...]


def stored_weights(data: bytes) -> dict[str, Stored]:
    """The weights of an ONNX model that are kept outside of it, by name."""
    found: dict[str, Stored] = {}
    for number, graph in read_fields(memoryview(data)):
        if number == MODEL_GRAPH and isinstance(graph, memoryview):
            for field, tensor in read_fields(graph):
                if field == GRAPH_INITIALIZER and isinstance(tensor, memoryview):
                    found |= _stored(tensor)
    return found


def _stored(tensor: memoryview) -> dict[str, Stored]:
    name, kind, shape, entries = "", 0, [], {}
    for number, value in read_fields(tensor):
        if number == TENSOR_DIMS and isinstance(value, int):
            shape.append(value)
        elif number == TENSOR_TYPE and isinstance(value, int):
            kind = value
        elif number == TENSOR_NAME and isinstance(value, memoryview):
            name = _text(value)
        elif number == TENSOR_EXTERNAL and isinstance(value, memoryview):
            entry = {part: _text(text) for part, text in read_fields(value) if isinstance(text, memoryview)}
            entries[entry.get(ENTRY_KEY, "")] = entry.get(ENTRY_VALUE, "")
    if "location" not in entries or kind not in TYPES:
        return {}
    offset = entries.get("offset", "0")
    if not offset.isdecimal():
        raise NotOnnxError(f"the offset of {name[:60]!r} is {offset[:60]!r}")
    return {name: Stored(entries["location"], int(offset), TYPES[kind], tuple(shape))}


def _text(value: memoryview | bytes) -> str:
    return bytes(value).decode("utf-8", "backslashreplace")


def _collect(message: memoryview, kind: str, found: set[str], depth: int) -> None:
    if depth > DEEPEST:
        raise NotOnnxError("its graphs are nested too deeply")
    if kind == "entry":
        entry = {number: bytes(value) for number, value in read_fields(message) if isinstance(value, memoryview)}
        if entry.get(ENTRY_KEY) == b"location":
            found.add(_text(entry.get(ENTRY_VALUE, b"")))
        return
    for number, value in read_fields(message):
        inner = INSIDE[kind].get(number)
        if inner is not None:
            if not isinstance(value, memoryview):
                raise NotOnnxError(f"field {number} of a {kind} is a number")
            _collect(value, inner, found, depth + 1)


def read_fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == BYTES:
            size, at = _varint(message, at)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise NotOnnxError(f"it has a field of the unknown wire type {wire}")
        if at + size > len(message):
            raise NotOnnxError("it ends in the middle of a field")
        yield number, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise NotOnnxError("it ends in the middle of a number")
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
