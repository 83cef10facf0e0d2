"""Whole graphs against those that this version builds from the checkpoint: weights, nodes, attributes, interface."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import uses_external_data

from attendant.export.bundle import Variant
from attendant.export.graphs.builder import Array, WeightStore
from attendant.export.graphs.variants import build_variant_graph, graphs_of
from attendant.export.graphs.weights import arrays_of
from attendant.export.verify.inputs import worst
from attendant.model.checkpoint import TrainedModel


def check_graphs(variant: Variant, trained: TrainedModel) -> Iterator[str]:
    """Differences of a variant's graphs from a rebuild."""
    arrays = arrays_of(trained.model)
    for graph in graphs_of(variant.name, trained.config):
        if graph not in variant.graphs:
            yield f"{graph}: the graph is missing"
            continue
        path, store = variant.graphs[graph], WeightStore()
        rebuilt = build_variant_graph(variant.name, graph, trained.config, arrays, store, "in memory")
        stored = onnx.load(str(path), load_external_data=False)
        yield from compare_weights(graph, stored, rebuilt, path.parent, store)
        yield from compare_nodes(graph, stored, rebuilt)
    for graph in variant.graphs.keys() - set(graphs_of(variant.name, trained.config)):
        yield f"{graph}: such a model has no such graph"


def compare_weights(
    graph: str, stored: onnx.ModelProto, rebuilt: onnx.ModelProto, directory: Path, store: WeightStore
) -> Iterator[str]:
    """One weight after the other: large ones are in a file of `directory`, or in `store` for the rebuilt graph."""
    weights = {tensor.name: tensor for tensor in stored.graph.initializer}
    rebuilt_weights = {tensor.name: tensor for tensor in rebuilt.graph.initializer}
    if len(weights) != len(stored.graph.initializer):
        yield f"{graph}: two weights have the same name"
    for name in sorted(weights.keys() | rebuilt_weights.keys()):
        if name not in weights or name not in rebuilt_weights:
            yield f"{graph}: weight {name} is {'missing' if name not in weights else 'not of the model'}"
            continue
        found, tensor = _array(weights[name], directory), rebuilt_weights[name]
        expected = store.array(name) if uses_external_data(tensor) else numpy_helper.to_array(tensor)
        if (found.shape, found.dtype) != (expected.shape, expected.dtype):
            yield f"{graph}: weight {name} is {found.dtype} {found.shape}, not {expected.dtype} {expected.shape}"
        elif found.tobytes() != expected.tobytes():
            yield f"{graph}: weight {name} is not the checkpoint's: {worst(found, expected)}"


def compare_nodes(graph: str, stored: onnx.ModelProto, rebuilt: onnx.ModelProto) -> Iterator[str]:
    """Differences other than in weights: the first of each kind."""
    stored, rebuilt = _without_weights(stored), _without_weights(rebuilt)
    if _bytes(stored) == _bytes(rebuilt):
        return
    hint = "; if an older version exported it, export the model again"
    named = False
    for kind, found, expected in (
        ("node", stored.graph.node, rebuilt.graph.node),
        ("input", stored.graph.input, rebuilt.graph.input),
        ("output", stored.graph.output, rebuilt.graph.output),
        ("function", stored.functions, rebuilt.functions),
        ("operator set", stored.opset_import, rebuilt.opset_import),
    ):
        for problem in _first_difference(kind, list(found), list(expected)):
            named = True
            yield f"{graph}: {problem}{hint}"
    if not named:
        yield f"{graph}: the model's fields beside nodes, weights, inputs and outputs differ{hint}"


def _first_difference(kind: str, stored: list[Any], rebuilt: list[Any]) -> Iterator[str]:
    for number, (found, expected) in enumerate(zip(stored, rebuilt, strict=False)):
        if _bytes(found) != _bytes(expected):
            if kind == "function":
                yield f"the function {expected.name} is not this version's"
                return
            yield f"{kind} {number} is {_text(found)}, not {_text(expected)}"
            return
    if len(stored) != len(rebuilt):
        yield f"it has {len(stored)} {kind}s, not {len(rebuilt)}"


def _text(message: Any) -> str:
    if isinstance(message, onnx.NodeProto):
        attributes = ", ".join(f"{a.name}={onnx.helper.get_attribute_value(a)!r}" for a in message.attribute)
        arguments = ", ".join(_quoted(message.input))
        return f"{message.op_type}({arguments}{'; ' if attributes else ''}{attributes}) -> {', '.join(message.output)}"
    return " ".join(str(message).split())


def _quoted(names: Iterable[str]) -> Iterator[str]:
    return (name or "''" for name in names)


def _array(tensor: onnx.TensorProto, directory: Path) -> Array:
    copied = onnx.TensorProto()  # to_array would read the file into the tensor itself
    copied.CopyFrom(tensor)
    return np.asarray(numpy_helper.to_array(copied, str(directory)))


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    del copied.graph.initializer[:]
    return copied


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))
