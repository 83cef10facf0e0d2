"""Graphs that compiled code runs: as onnxruntime's own session does, and with a sentence where it refuses."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, save

from attendant import kernels
from attendant.kernels.graph import Graph, GraphError, Tensor

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="the kernels are not compiled")


class Memory:
    """An array that tells when nobody holds it any more."""

    def __init__(self, *values: float) -> None:
        self.array = np.array(values, np.float32)


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    kernels.register(ort.SessionOptions(), 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """y = x * w, with w of three numbers that lie in another file."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in "xy")
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="weights")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "product", [x], [y], [weight])
    found = tmp_path / "größe.onnx"
    (tmp_path / "weights").write_bytes(bytes(12))  # onnxruntime looks that it is there, and reads none of it
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), found)
    return found


def tensor(name: str, array: Any) -> Tensor:
    return Tensor(name, str(array.dtype), array.shape, array.ctypes.data)


def load(path: Path, memory: Memory) -> Graph:
    return Graph(path, 1, [tensor("w", memory.array)], owners=[memory])


def run(graph: Graph, x: Any) -> Any:
    y, io = np.zeros_like(x), graph.io_binding()
    io.bind_input("x", "cpu", 0, x.dtype, x.shape, x.ctypes.data)
    io.bind_output("y", "cpu", 0, y.dtype, y.shape, y.ctypes.data)
    graph.run_with_iobinding(io)
    return y


def test_a_graph_computes_with_the_weights_where_they_lie(path: Path) -> None:
    memory = Memory(1, 2, 3)
    graph = load(path, memory)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert (run(graph, x) == x * memory.array).all()
    memory.array[:] = 5
    assert (run(graph, x) == 5 * x).all()


def test_the_memory_of_the_weights_is_held_as_long_as_the_graph(path: Path) -> None:
    memory = Memory(1, 2, 3)
    graph, held = load(path, memory), weakref.ref(memory)
    del memory
    gc.collect()
    assert held() is not None
    del graph
    gc.collect()
    assert held() is None


def test_a_binding_outlives_the_name_of_its_graph(path: Path) -> None:
    graph = load(path, Memory(1, 2, 3))
    x, y = np.ones((1, 3), np.float32), np.zeros((1, 3), np.float32)
    io = graph.io_binding()
    io.bind_input("x", "cpu", 0, x.dtype, x.shape, x.ctypes.data)
    io.bind_output("y", "cpu", 0, y.dtype, y.shape, y.ctypes.data)
    graph.run_with_iobinding(io)
    del graph
    gc.collect()
    io._graph.run_with_iobinding(io)
    assert y.tolist() == [[1, 2, 3]]


def test_a_file_that_is_no_graph_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "text.onnx"
    path.write_text("no graph")
    with pytest.raises(GraphError, match=r"refused: .*text\.onnx"):
        load(path, Memory(1, 2, 3))


def test_what_the_graph_does_not_take_is_an_error_that_names_it(path: Path) -> None:
    graph = load(path, Memory(1, 2, 3))
    io = graph.io_binding()
    x = np.zeros((2, 3), np.float32)
    io.bind_input("z", "cpu", 0, x.dtype, x.shape, x.ctypes.data)
    with pytest.raises(GraphError, match="z"):
        graph.run_with_iobinding(io)
    with pytest.raises(GraphError, match="x"):
        run(graph, np.zeros((2, 4), np.float32))
