"""Graphs that compiled code runs by itself (cc/graph.h). Standard library only.

A `Graph` takes the place of an `onnxruntime.InferenceSession` whose inputs and outputs are always bound, and its
`Binding` that of an `onnxruntime.IOBinding`: so whoever binds and runs one need not know which of them it has.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from attendant.kernels import library

TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7}  # as onnxruntime numbers them
MAX_RANK = 6


class GraphError(RuntimeError):
    """onnxruntime refused a graph, what was bound to it, or a run of it."""


class Tensor(NamedTuple):
    """Memory of the caller's, which must stay where it is."""

    name: str
    dtype: str
    shape: Sequence[int]
    address: int


class _Tensor(ctypes.Structure):  # AttendantTensor
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("type", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_RANK),
    ]


ITEM_BYTES = {"float32": 4, "uint8": 1, "int8": 1, "int32": 4, "int64": 8}


class Graph:
    """The graph of a file, whose operators run on up to `threads` threads; `weights` are read where they lie.

    Some `onnxruntime.InferenceSession` must have registered the operators before.
    """

    def __init__(self, path: Path, threads: int, weights: Sequence[Tensor], owners: Sequence[object] = ()) -> None:
        """`owners` hold the memory of the weights, and are kept for as long as the graph is."""
        self._code, self.threads, self._owners = _functions(), threads, owners
        self._graph = self._code.attendant_graph_load(os.fsencode(path), threads, _array(weights), len(weights))
        if not self._graph:
            raise GraphError(problem())

    def __del__(self) -> None:
        if getattr(self, "_graph", None):
            self._code.attendant_graph_free(self._graph)

    def io_binding(self) -> Binding:
        return Binding(self)

    def run_with_iobinding(self, binding: Binding) -> None:
        if self._code.attendant_binding_run(binding.handle) < 0:
            raise GraphError(problem())

    def bind(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
        tensors = [*inputs, *outputs]
        handle = self._code.attendant_graph_bind(self._graph, _array(tensors), len(inputs), len(tensors))
        if not handle:
            raise GraphError(problem())
        return int(handle)

    def release(self, handle: int) -> None:
        self._code.attendant_binding_free(handle)


class Binding:
    """Inputs and outputs, given one by one, and bound when they are first used."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._handle = graph, 0
        self._inputs: list[Tensor] = []
        self._outputs: list[Tensor] = []

    def bind_input(self, name: str, _device: str, _id: int, dtype: Any, shape: Sequence[int], address: int) -> None:
        self._inputs.append(Tensor(name, _name(dtype), shape, address))

    def bind_output(self, name: str, _device: str, _id: int, dtype: Any, shape: Sequence[int], address: int) -> None:
        self._outputs.append(Tensor(name, _name(dtype), shape, address))

    @property
    def handle(self) -> int:
        """Of the compiled code's binding."""
        if not self._handle:
            self._handle = self._graph.bind(self._inputs, self._outputs)
        return self._handle

    def __del__(self) -> None:
        if self._handle:
            self._graph.release(self._handle)


@cache
def _name(dtype: Any) -> str:
    return str(dtype)  # numpy makes it anew each time


def _array(tensors: Sequence[Tensor]) -> ctypes.Array[_Tensor]:
    found = (_Tensor * len(tensors))()
    for place, each in zip(found, tensors, strict=True):
        size = ITEM_BYTES[each.dtype]
        for length in each.shape:
            size *= length
        place.name, place.data, place.bytes = each.name.encode(), each.address, size
        place.type, place.rank = TYPES[each.dtype], len(each.shape)
        place.shape[: len(each.shape)] = each.shape
    return found


def problem() -> str:
    """Why the last call of this thread failed."""
    return _functions().attendant_problem().decode(errors="replace") or "not enough memory."


@cache
def _functions() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library()))
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
        ("attendant_graph_load", pointer, [ctypes.c_char_p, ctypes.c_int32, ctypes.POINTER(_Tensor), count]),
        ("attendant_graph_free", None, [pointer]),
        ("attendant_graph_bind", pointer, [pointer, ctypes.POINTER(_Tensor), count, count]),
        ("attendant_binding_free", None, [pointer]),
        ("attendant_binding_run", ctypes.c_int32, [pointer]),
        ("attendant_problem", ctypes.c_char_p, []),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded
