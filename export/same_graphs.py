"""Whole graphs against those that this version builds from the checkpoint: weights, nodes, attributes, interface."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import uses_external_data

from export.builder import Array, WeightStore
from export.bundle import Variant
from export.calibration import Range
from export.inputs import worst
from export.variants import build_variant_graph, graphs_of
from export.weights import arrays_of
from model.checkpoint import TrainedModel


def check_graphs(variant: Variant, trained: TrainedModel) -> Iterator[str]:
    """Differences of a variant's graphs from a rebuild with the calibration of its manifest."""
    arrays = arrays_of(trained.model)
    ranges = {name: Range(**values) for name, values in variant.calibration.items()}
    for graph in graphs_of(variant.name, trained.config):
        if graph not in variant.graphs:
            yield f"{graph}: the graph is missing"
            continue
        path, store = variant.graphs[graph], WeightStore()
        wanted = build_variant_graph(variant.name, graph, trained.config, arrays, ranges, store, "in memory")
        stored = onnx.load(str(path), load_external_data=False)
        yield from compare_weights(graph, stored, wanted, path.parent, store)
        yield from compare_nodes(graph, stored, wanted)
    for graph in variant.graphs.keys() - set(graphs_of(variant.name, trained.config)):
        yield f"{graph}: such a model has no such graph"


def compare_weights(
    graph: str, stored: onnx.ModelProto, wanted: onnx.ModelProto, directory: Path, store: WeightStore
) -> Iterator[str]:
    """One weight after the other: large ones are in a file of `directory`, or in `store` for the rebuilt graph."""
    have, want = ({tensor.name: tensor for tensor in model.graph.initializer} for model in (stored, wanted))
    if len(have) != len(stored.graph.initializer):
        yield f"{graph}: two weights have the same name"
    for name in sorted(have.keys() | want.keys()):
        if name not in have or name not in want:
            yield f"{graph}: weight {name} is {'missing' if name not in have else 'not of the model'}"
            continue
        mine = _array(have[name], directory)
        theirs = store.array(name) if uses_external_data(want[name]) else numpy_helper.to_array(want[name])
        if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
            yield f"{graph}: weight {name} is {mine.dtype} {mine.shape}, not {theirs.dtype} {theirs.shape}"
        elif mine.tobytes() != theirs.tobytes():
            yield f"{graph}: weight {name} is not the checkpoint's: {worst(mine, theirs)}"


def compare_nodes(graph: str, stored: onnx.ModelProto, wanted: onnx.ModelProto) -> Iterator[str]:
    """Differences other than in weights: the first of each kind."""
    have, want = _without_weights(stored), _without_weights(wanted)
    if _bytes(have) == _bytes(want):
        return
    hint = "; if an older version exported it, export the model again"
    found = False
    for kind, mine, theirs in (
        ("node", have.graph.node, want.graph.node),
        ("input", have.graph.input, want.graph.input),
        ("output", have.graph.output, want.graph.output),
        ("operator set", have.opset_import, want.opset_import),
    ):
        for problem in _first_difference(kind, list(mine), list(theirs)):
            found = True
            yield f"{graph}: {problem}{hint}"
    if not found:
        yield f"{graph}: the model's fields beside nodes, weights, inputs and outputs differ{hint}"


def _first_difference(kind: str, have: list[Any], want: list[Any]) -> Iterator[str]:
    for number, (mine, theirs) in enumerate(zip(have, want, strict=False)):
        if _bytes(mine) != _bytes(theirs):
            yield f"{kind} {number} is {_text(mine)}, not {_text(theirs)}"
            return
    if len(have) != len(want):
        yield f"it has {len(have)} {kind}s, not {len(want)}"


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
