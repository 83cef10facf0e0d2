"""Builds ONNX graphs node by node; the graphs of one variant share one weights file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 20
IR_VERSION = 10
OURS = "attendant"  # the domain of the operators in kernels/
ELEMENT_TYPES = {
    "int64": TensorProto.INT64,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int32": TensorProto.INT32,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
}
NAMED = {"float": "real"}  # in names of constants; a change would fail the verification of bundles already exported
SMALLEST_STORED = 1024  # bytes; smaller arrays stay in the graph
ALIGNMENT = 64  # bytes

Array = np.ndarray[Any, Any]


class WeightStore:
    """Named arrays, aligned, one after the other in one file."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}
        self._offsets: dict[str, int] = {}
        self._end = 0
        self._made: dict[str, dict[str, Array]] = {}

    def once(self, name: str, make: Callable[[], dict[str, Array]]) -> dict[str, Array]:
        """What `make` returned when the first graph asked for it by this name."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def tensor(self, name: str, value: Array, location: str) -> onnx.TensorProto:
        """An external tensor at its offset in the file; a name is stored once."""
        if name not in self._arrays:
            self._arrays[name], self._offsets[name] = value, self._end
            self._end += -(-value.nbytes // ALIGNMENT) * ALIGNMENT
        elif not _same(self._arrays[name], value):
            raise ValueError(f"two different weights are both called {name!r}")
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        tensor = TensorProto(name=name, data_type=kind, dims=value.shape, data_location=TensorProto.EXTERNAL)
        for key, entry in (("location", location), ("offset", self._offsets[name]), ("length", value.nbytes)):
            tensor.external_data.add(key=key, value=str(entry))
        return tensor

    def array(self, name: str) -> Array:
        return self._arrays[name]

    def write(self, path: Path) -> None:
        with path.open("wb") as file:
            for name, value in self._arrays.items():
                file.seek(self._offsets[name])
                file.write(np.ascontiguousarray(value).data)
            file.truncate(self._end)


def _same(a: Array, b: Array) -> bool:
    """Equal; at once for two views of the same memory, as every graph has of a large weight."""
    places = [(x.__array_interface__["data"], x.shape, x.strides, x.dtype) for x in (a, b)]
    return places[0] == places[1] or np.array_equal(a, b)


class GraphBuilder:
    """One graph. `dtype` is that of floating-point values, `cache_dtype` that of KV caches (`dtype` by default).

    With a `store`, what several graphs compute from the weights is computed once.
    """

    def __init__(
        self, name: str, dtype: str = "float32", cache_dtype: str = "", store: WeightStore | None = None
    ) -> None:
        self._name, self.dtype, self.cache_dtype = name, dtype, cache_dtype or dtype
        self.store = store or WeightStore()
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._weights: dict[str, Array] = {}
        self._functions: dict[str, onnx.FunctionProto] = {}
        self._count = 0

    def input(self, name: str, kind: str, axes: Sequence[str | int]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, self._element(kind), list(axes)))
        return name

    def output(self, value: str, name: str, kind: str, axes: Sequence[str | int]) -> None:
        """Rename a value, wherever it is used, and make it a graph output."""
        self._rename(value, name)
        self._outputs.append(helper.make_tensor_value_info(name, self._element(kind), list(axes)))

    def _rename(self, value: str, name: str) -> None:
        for node in self._nodes:
            for names in (node.input, node.output):
                for i, used in enumerate(names):
                    names[i] = name if used == value else used

    def define(self, function: onnx.FunctionProto) -> None:
        """Give an operator of our own its definition."""
        self._functions[function.name] = function

    def weight(self, name: str, value: Array) -> str:
        """A named initializer, stored once; floating-point arrays are cast to the graph's dtype."""
        if name not in self._weights:
            self._weights[name] = value.astype(self.dtype, copy=False) if value.dtype.kind == "f" else value
        return name

    def cast(self, value: str, kind: str) -> str:
        return self.op("Cast", value, to=self._element(kind))

    def constant(self, value: Any, kind: str = "int64") -> str:
        array = np.asarray(value, dtype=self.dtype if kind == "float" else kind)
        name = f"constant_{NAMED.get(kind, kind)}_{array.shape}_{array.tolist()}"
        return self.weight(name.replace(" ", ""), array)

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output, and return that output's name."""
        [name] = self._add(kind, inputs, [f"{kind}_{self._count}"], domain, attributes)
        return name

    def multi_op(self, kind: str, *inputs: str, outputs: int, domain: str = "", **attributes: Any) -> list[str]:
        """Add a node with several outputs, and return their names."""
        return self._add(kind, inputs, [f"{kind}_{self._count}_{i}" for i in range(outputs)], domain, attributes)

    def _add(
        self, kind: str, inputs: Sequence[str], outputs: list[str], domain: str, attributes: dict[str, Any]
    ) -> list[str]:
        self._count += 1
        node = helper.make_node(kind, inputs, outputs, name=f"n{self._count}", domain=domain, **attributes)
        self._nodes.append(node)
        return outputs

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """A dimension of 0 is copied from the input, -1 is inferred."""
        return self.op("Reshape", value, self.constant(list(shape)))

    def _element(self, kind: str) -> int:
        return int(ELEMENT_TYPES[{"float": self.dtype, "cache": self.cache_dtype}.get(kind, kind)])

    def build(self, store: WeightStore | None = None, location: str = "") -> onnx.ModelProto:
        """The model; with a store, large weights are external data in the file `location`."""
        initializers = []
        for name, value in self._weights.items():
            if store is not None and value.nbytes >= SMALLEST_STORED:
                initializers.append(store.tensor(name, value, location))
            else:
                initializers.append(numpy_helper.from_array(value, name))
        graph = helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, initializers)
        opsets = [helper.make_opsetid("", OPSET)]
        if self._functions:
            opsets.append(helper.make_opsetid(OURS, 1))
        functions = list(self._functions.values())
        model = helper.make_model(graph, opset_imports=opsets, functions=functions, producer_name="attendant")
        model.ir_version = IR_VERSION
        return model


class FunctionBuilder(GraphBuilder):
    """The definition of an operator of our own: a function of standard operators, whose constants are nodes."""

    def weight(self, name: str, value: Array) -> str:
        if name not in self._weights:
            self._weights[name] = value
            self._nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value)))
        return name

    def function(self, inputs: Sequence[str], outputs: dict[str, str], attributes: Sequence[str]) -> onnx.FunctionProto:
        """`outputs`: the values that the operator returns, by the names that they get, in order."""
        for name, value in outputs.items():
            self._rename(value, name)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_function(OURS, self._name, list(inputs), list(outputs), self._nodes, opsets, attributes)
