"""Writes ONNX graphs node by node; graphs of one variant keep their weights once, in one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 20
IR_VERSION = 10
CONTRIB = "com.microsoft"  # onnxruntime's own operators
ELEMENT_TYPES = {
    "int64": TensorProto.INT64,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int32": TensorProto.INT32,
    "int8": TensorProto.INT8,
}
SMALLEST_STORED = 1024  # bytes; what is smaller stays in the graph
ALIGNMENT = 64  # bytes

Array = np.ndarray[Any, Any]


class WeightStore:
    """Arrays by name, one after the other in one file."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}
        self._offsets: dict[str, int] = {}
        self._end = 0

    def tensor(self, name: str, value: Array, location: str) -> onnx.TensorProto:
        """A tensor that refers to its place in the file; the same name is the same place."""
        if name not in self._arrays:
            self._arrays[name], self._offsets[name] = value, self._end
            self._end += -(-value.nbytes // ALIGNMENT) * ALIGNMENT
        elif not np.array_equal(self._arrays[name], value):
            raise ValueError(f"two different weights are both called {name!r}")
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        tensor = TensorProto(name=name, data_type=kind, dims=value.shape, data_location=TensorProto.EXTERNAL)
        for key, entry in (("location", location), ("offset", self._offsets[name]), ("length", value.nbytes)):
            tensor.external_data.add(key=key, value=str(entry))
        return tensor

    def write(self, path: Path) -> None:
        with path.open("wb") as file:
            for name, value in self._arrays.items():
                file.seek(self._offsets[name])
                file.write(np.ascontiguousarray(value).tobytes())
            file.truncate(self._end)


class GraphBuilder:
    """One graph. `real` is the precision of its values where nothing else is said, `cache` that of what is cached."""

    def __init__(self, name: str, real: str = "float32", cache: str = "") -> None:
        self._name, self.real, self.cache = name, real, cache or real
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._weights: dict[str, Array] = {}
        self._count = 0

    def input(self, name: str, kind: str, axes: Sequence[str | int]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, self._element(kind), list(axes)))
        return name

    def output(self, value: str, name: str, kind: str, axes: Sequence[str | int]) -> None:
        """Give a value the name of an output, wherever it is used."""
        for node in self._nodes:
            for names in (node.input, node.output):
                for i, used in enumerate(names):
                    names[i] = name if used == value else used
        self._outputs.append(helper.make_tensor_value_info(name, self._element(kind), list(axes)))

    def weight(self, name: str, value: Array) -> str:
        """A named array, stored once however often it is used; real numbers in the graph's precision."""
        if name not in self._weights:
            self._weights[name] = value.astype(self.real) if value.dtype.kind == "f" else value
        return name

    def cast(self, value: str, kind: str) -> str:
        return str(self.op("Cast", value, to=self._element(kind)))

    def constant(self, value: Any, kind: str = "int64") -> str:
        array = np.asarray(value, dtype=self.real if kind == "real" else kind)
        return self.weight(f"constant_{kind}_{array.shape}_{array.tolist()}".replace(" ", ""), array)

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        """Add a node; the name of its output, or a list of names where it has several."""
        names = [f"{kind}_{self._count}" if outputs == 1 else f"{kind}_{self._count}_{i}" for i in range(outputs)]
        self._count += 1
        node = helper.make_node(kind, list(inputs), names, name=f"n{self._count}", domain=domain, **attributes)
        self._nodes.append(node)
        return names[0] if outputs == 1 else names

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """0 keeps an axis, -1 takes what is left."""
        return str(self.op("Reshape", value, self.constant(list(shape))))

    def _element(self, kind: str) -> int:
        return int(ELEMENT_TYPES[{"real": self.real, "cache": self.cache}.get(kind, kind)])

    def build(self, store: WeightStore | None = None, location: str = "") -> onnx.ModelProto:
        """The model, with its large weights in a store that is written to `location` beside it, or inside."""
        initializers = []
        for name, value in self._weights.items():
            if store is not None and value.nbytes >= SMALLEST_STORED:
                initializers.append(store.tensor(name, value, location))
            else:
                initializers.append(numpy_helper.from_array(value, name))
        graph = helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, initializers)
        opsets = [helper.make_opsetid("", OPSET)]
        if any(node.domain == CONTRIB for node in self._nodes):
            opsets.append(helper.make_opsetid(CONTRIB, 1))
        model = helper.make_model(graph, opset_imports=opsets, producer_name="attendant")
        model.ir_version = IR_VERSION
        return model
