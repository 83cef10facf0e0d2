"""Tiny models of one operator each, with random weights, and sessions that run them with the library."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from attendant import kernels
from tests.kernels.reference import Array, Norm, Product

FLOAT, INT8, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.INT32, TensorProto.INT64


def pack(weight: Array) -> Array:
    """(K, N) int8 -> (N / 32, K / 4, 2, 16, 4), N rounded up to 32."""
    k, n = weight.shape
    padded = np.pad(weight, [(0, 0), (0, -n % 32)])
    return np.ascontiguousarray(padded.reshape(k // 4, 4, padded.shape[1] // 32, 2, 16).transpose(2, 0, 3, 4, 1))


def pack_f32(weight: Array) -> Array:
    """(K, N) -> (N / 32, K, 32), N rounded up to 32."""
    k, n = weight.shape
    padded = np.pad(weight, [(0, 0), (0, -n % 32)])
    return np.ascontiguousarray(padded.reshape(k, padded.shape[1] // 32, 32).transpose(1, 0, 2))


class Weights:
    """Random weights, and the initializers that hold them, in the order in which they are asked for."""

    def __init__(self, seed: int, int8: bool) -> None:
        self.random, self.int8 = np.random.default_rng(seed), int8
        self.initializers: list[Array] = []

    def product(self, k: int, n: int) -> Product:
        weight = (self.random.standard_normal((k, n)) / math.sqrt(k)).astype(np.float32)
        bias = (self.random.standard_normal(n) / 4).astype(np.float32)
        if not self.int8:
            self.initializers += [pack_f32(weight), bias]
            return Product(weight, bias)
        scale = (np.maximum(np.abs(weight).max(0), 1e-8) / 63).astype(np.float32)
        integers = np.rint(weight / scale).astype(np.int8)
        pad = (0, -n % 32)
        sums = np.pad(integers.astype(np.int32).sum(0, dtype=np.int32), pad)
        self.initializers += [pack(integers), np.pad(scale, pad, constant_values=1), sums, np.pad(bias, pad)]
        return Product(integers, bias, scale)

    def norm(self, width: int, rms: bool = False) -> Norm:
        gamma = (1 + self.random.standard_normal(width) / 8).astype(np.float32)
        beta = (self.random.standard_normal(width) / 8).astype(np.float32)
        self.initializers += [gamma, beta]
        return Norm(gamma, beta, rms=rms)


def session(
    name: str,
    inputs: dict[str, Any],
    constants: list[Array],
    outputs: dict[str, int],
    attributes: dict[str, Any],
    threads: int = 1,
    after: dict[str, Any] | None = None,
) -> ort.InferenceSession:
    """A model of one node: `inputs` (name to example), then constants, then the inputs `after`."""
    after = after or {}
    names = [f"c{i}" for i in range(len(constants))]
    node = helper.make_node(name, [*inputs, *names, *after], list(outputs), domain=kernels.DOMAIN, **attributes)
    values = {**inputs, **after}
    typed = [
        helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(value.dtype), [None] * value.ndim)
        for key, value in values.items()
    ]
    results = [helper.make_tensor_value_info(key, kind, None) for key, kind in outputs.items()]
    initializers = [numpy_helper.from_array(value, key) for key, value in zip(names, constants, strict=True)]
    graph = helper.make_graph([node], "test", typed, results, initializers)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(kernels.DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    kernels.register(options, threads)
    return ort.InferenceSession(onnx.ModelProto.SerializeToString(model), options, ["CPUExecutionProvider"])
