"""Every node that a CUDA device would run has a CUDA kernel for its types, so no step is copied to the CPU and back.

No GPU is needed: the facts are onnxruntime's own table of kernels, docs/OperatorKernels.md, the same for this in 1.29.0
and in 1.30.0. `make cuda-check` asks the package onnxruntime-gpu itself (docs/decisions/011-cuda-without-a-gpu.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import onnx
import pytest
from onnx import TensorProto

from attendant.export.graphs.builder import OPSET
from attendant.export.graphs.variants import build_variant_graph
from attendant.export.graphs.weights import arrays_of
from attendant.export.signature import REQUIRED
from attendant.model.config import CHOICES
from tests.support.small_models import make_model

ANY = "float float16 int64 int32 bool"
NUMBER = "float float16 int64 int32"
FLOAT = "float float16"
# CUDAExecutionProvider, domain ai.onnx: first and last opset of the kernel, and its types among those of `ANY`.
CUDA_KERNELS: dict[str, tuple[int, int | None, dict[str, str]]] = {
    "Add": (14, None, {"T": NUMBER}),
    "Cast": (19, 20, {"T1": ANY, "T2": ANY}),
    "Concat": (13, None, {"T": ANY}),
    "Equal": (19, None, {"T": ANY, "T1": "bool"}),
    "Gather": (13, None, {"T": ANY, "Tind": "int64 int32"}),
    "Gelu": (20, None, {"T": FLOAT}),
    "Gemm": (13, None, {"T": FLOAT}),
    "LayerNormalization": (17, None, {"T": FLOAT, "U": "float"}),
    "Less": (13, None, {"T": NUMBER, "T1": "bool"}),
    "LessOrEqual": (16, None, {"T": NUMBER, "T1": "bool"}),
    "LogSoftmax": (13, None, {"T": FLOAT}),
    "MatMul": (13, None, {"T": FLOAT}),
    "Mul": (14, None, {"T": NUMBER}),
    "Pad": (19, 20, {"T": "float float16 bool"}),
    "Range": (11, 26, {"T": "float int64 int32"}),
    "ReduceSumSquare": (18, None, {"T": FLOAT}),
    "Relu": (14, None, {"T": FLOAT}),
    "Reshape": (19, 20, {"T": ANY}),
    "Shape": (19, 20, {"T": ANY, "T1": "int64"}),
    "Sigmoid": (13, None, {"T": FLOAT}),
    "Slice": (13, None, {"T": ANY, "Tind": "int64 int32"}),
    "Softmax": (13, None, {"T": FLOAT}),
    "Split": (18, None, {"T": ANY}),
    "Squeeze": (13, 20, {"T": ANY}),
    "Sub": (14, None, {"T": NUMBER}),
    "Tanh": (13, None, {"T": FLOAT}),
    "TopK": (11, 23, {"I": "int64", "T": NUMBER}),
    "Transpose": (13, 20, {"T": ANY}),
    "Unsqueeze": (13, 20, {"T": ANY}),
    "Where": (16, None, {"B": "bool", "T": NUMBER}),
}


def types_of(model: onnx.ModelProto) -> dict[str, str]:
    """The element type of every value of a graph, as the table of kernels writes it."""
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    values = [*graph.input, *graph.output, *graph.value_info]
    numbers = {value.name: value.type.tensor_type.elem_type for value in values}
    numbers |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    return {name: TensorProto.DataType.Name(number).lower() for name, number in numbers.items()}


def without_kernel(model: onnx.ModelProto) -> Iterator[str]:
    """The nodes that have no CUDA kernel for their opset and types."""
    types = types_of(model)
    for node in model.graph.node:
        first, last, kernel_types = CUDA_KERNELS.get(node.op_type, (OPSET + 1, None, {}))
        if node.domain or not first <= OPSET <= (last or OPSET):
            yield f"{node.op_type} has no CUDA kernel for opset {OPSET}"
            continue
        schema = onnx.defs.get_schema(node.op_type, OPSET)
        for names, formals in ((node.input, schema.inputs), (node.output, schema.outputs)):
            for i, name in enumerate(names):
                parameter = formals[min(i, len(formals) - 1)].type_str  # the last one may be variadic
                if parameter in kernel_types and types[name] not in kernel_types[parameter].split():
                    yield f"{node.op_type} has no CUDA kernel for {parameter} = {types[name]}"


@pytest.mark.parametrize("variant", ["fp32", "fp16"])
@pytest.mark.parametrize(("score", "norm"), list(itertools.product(CHOICES["score"], CHOICES["norm"])))
def test_every_node_has_a_cuda_kernel_for_its_types(variant: str, score: str, norm: str) -> None:
    for activation in CHOICES["activation"]:
        model = make_model(score=score, norm=norm, activation=activation)
        for graph in REQUIRED:
            built = build_variant_graph(variant, graph, model.config, arrays_of(model))
            assert not set(without_kernel(built)), graph


def test_a_node_without_a_kernel_is_found() -> None:
    model = make_model()
    graph = build_variant_graph("fp32", "merge", model.config, arrays_of(model))
    for value in (*graph.graph.input, *graph.graph.output):
        if value.name in ("held", "added", "merged"):
            value.type.tensor_type.elem_type = TensorProto.INT64
    assert set(without_kernel(graph)) == {"Pad has no CUDA kernel for T = int64"}
