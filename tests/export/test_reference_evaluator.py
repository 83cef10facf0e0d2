"""Every graph, of every precision, in onnx's own evaluator of reference, which runs our own operators' definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

from attendant.export import signature
from attendant.export.graphs.graphs import sizes_of
from attendant.export.graphs.variants import build_variant_graph, graphs_of
from attendant.export.graphs.weights import arrays_of
from attendant.export.precisions import PRECISIONS, Precision
from attendant.model.transformer import Transformer
from tests.export.graphs.test_graphs import sources, targets
from tests.support.small_models import T5, make_model

CHOICES: list[dict[str, Any]] = [
    {},
    {"score": "additive", "activation": "gelu"},
    {"score": "gaussian", "norm": "pre", "activation": "silu"},
    {"bias": False, "tie": "none"},
    T5 | {"activation": "gated_silu"},  # the evaluator has no Gelu inside of functions
]
TOLERANCES = {"fp32": 1e-5, "int8": 0.05, "fp16": 0.02}  # int8: a level that f32's last bit decides


def feeds_of(graph: str, model: Transformer, precision: Precision) -> dict[str, Any]:
    """Inputs of a graph: real sources and targets, random caches."""
    sizes, rng = sizes_of(model.config), np.random.default_rng(0)
    source, source_length = sources([4, 7, 1])
    free: dict[str | int, int] = {
        "rows": 3,
        "sources": 3,
        "source": 7,
        "past": 5,
        "held": 2,
        "added": 1,
        "held_past": 4,
        "added_past": 6,
    }
    known: dict[str, Any] = {
        "source": source,
        "source_length": source_length,
        "target": targets(3, 5),
        "token": np.array([4, 9, 7]),
        "position": np.array([3, 0, 4]),
        "top": np.array([4]),
        "whole": np.ones(3, np.int64),
        "source_row": np.array([2, 0, 0]),
        "index": np.array([2, 0, 0]),
        "length": np.array([5]),
    }
    feeds = {}
    for value in signature.inputs(graph, sizes, precision.quantized):
        dtype = precision.dtype_of(value.kind, graph)
        if value.name not in known:
            shape = [free.get(axis, axis) for axis in value.shape(sizes)]
            known[value.name] = rng.normal(0, 30 if dtype == "int8" else 1, shape).astype(dtype)
        feeds[value.name] = known[value.name]
    return feeds


@pytest.mark.parametrize("changes", CHOICES, ids=str)
@pytest.mark.parametrize("graph", signature.GRAPHS)
@pytest.mark.parametrize("variant", PRECISIONS)
def test_a_graph_gives_the_same_values_in_the_reference_evaluator(
    variant: str, graph: str, changes: dict[str, Any]
) -> None:
    model = make_model(**changes)
    if graph not in graphs_of(variant, model.config):
        pytest.skip("such a model has no such graph")
    proto = build_variant_graph(variant, graph, model.config, arrays_of(model))
    standard = {node.domain for function in proto.functions for node in function.node}
    assert standard | {node.domain for node in proto.graph.node if not proto.functions} == {""}
    feeds = feeds_of(graph, model, PRECISIONS[variant])
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    evaluator = ReferenceEvaluator(proto)
    for name, mine, theirs in zip(names, session.run(names, feeds), evaluator.run(names, feeds), strict=True):
        assert mine.shape == theirs.shape
        if mine.dtype == np.int8:  # a level that f32's last bit decides
            assert np.abs(mine.astype(int) - theirs).max() <= 1
        elif name != "top_ids":  # equals may come in another order
            np.testing.assert_allclose(mine, theirs, atol=TOLERANCES[variant], err_msg=name)
