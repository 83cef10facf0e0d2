"""Writes an ONNX graph node by node: the names of values are made up here, the weights are kept once by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 20
IR_VERSION = 10
ELEMENT_TYPES = {"int64": TensorProto.INT64, "float32": TensorProto.FLOAT}


class GraphBuilder:
    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._weights: dict[str, np.ndarray[Any, Any]] = {}
        self._count = 0

    def input(self, name: str, kind: str, axes: Sequence[str | int]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, ELEMENT_TYPES[kind], list(axes)))
        return name

    def output(self, value: str, name: str, kind: str, axes: Sequence[str | int]) -> None:
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, ELEMENT_TYPES[kind], list(axes)))

    def weight(self, name: str, value: np.ndarray[Any, Any]) -> str:
        """A named array, stored once however often it is used."""
        self._weights.setdefault(name, value)
        return name

    def constant(self, value: Any, kind: str = "int64") -> str:
        array = np.asarray(value, dtype=kind)
        return self.weight(f"constant_{kind}_{array.shape}_{array.tolist()}".replace(" ", ""), array)

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        """Add a node; the name of its output, or a list of names where it has several."""
        names = [f"{kind}_{self._count}" if outputs == 1 else f"{kind}_{self._count}_{i}" for i in range(outputs)]
        self._count += 1
        self._nodes.append(
            helper.make_node(kind, list(inputs), names, name=f"n{self._count}", domain=domain, **attributes)
        )
        return names[0] if outputs == 1 else names

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """0 keeps an axis, -1 takes what is left."""
        return str(self.op("Reshape", value, self.constant(list(shape))))

    def build(self) -> onnx.ModelProto:
        initializers = [numpy_helper.from_array(value, name) for name, value in self._weights.items()]
        graph = helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="attendant")
        model.ir_version = IR_VERSION
        return model
