"""Every plain graph, of every precision, in onnx's own evaluator of reference.

It has none of onnxruntime's operators. `MatMulIntegerToFloat` is given to it here, by its definition; the fast graphs'
attention nodes are not, so those graphs are compared with torch and with the int8 reference only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from export import signature
from export.calibration import calibrate
from export.graphs import sizes_of
from export.precisions import PRECISIONS
from export.signature import REQUIRED
from export.variants import build_variant_graph
from export.weights import arrays_of
from model.transformer import Transformer
from tests.conftest import make_model
from tests.test_export_graphs import sources, targets
from tests.test_export_quantize import PAIRS

CHOICES: list[dict[str, Any]] = [
    {},
    {"score": "additive", "activation": "gelu"},
    {"score": "gaussian", "norm": "pre", "activation": "silu"},
    {"bias": False, "tie": "none"},
]
TOLERANCES = {"fp32": 1e-5, "int8": 0.05, "fp16": 0.02}  # int8: a level that f32's last bit decides


class MatMulIntegerToFloat(OpRun):  # type: ignore[misc]
    op_domain = "com.microsoft"

    def _run(
        self, a: Any, b: Any, a_scale: Any, b_scale: Any, a_zero: Any, b_zero: Any = None, bias: Any = None
    ) -> Any:
        assert b_zero is None
        product = (a.astype(np.int32) - np.int32(a_zero)) @ b.astype(np.int32)
        scaled = product.astype(np.float32) * (a_scale * b_scale)
        return ((scaled if bias is None else scaled + bias).astype(np.float32),)


def feeds_of(graph: str, model: Transformer, dtype: str) -> dict[str, Any]:
    """Inputs of a graph: real sources and targets, random caches."""
    sizes, rng = sizes_of(model.config), np.random.default_rng(0)
    source, source_length = sources([4, 7, 1])
    free = {"rows": 3, "source": 7, "past": 5, "held": 2, "added": 1, "held_past": 4, "added_past": 6}
    known = {
        "source": source,
        "source_length": source_length,
        "target": targets(3, 5),
        "token": np.array([4, 9, 7]),
        "position": np.array([3, 0, 4]),
        "top": np.array([4]),
        "index": np.array([2, 0, 0]),
        "length": np.array([5]),
    }
    return {
        value.name: known[value.name]
        if value.name in known
        else rng.normal(size=[free.get(axis, axis) for axis in value.shape(sizes)]).astype(dtype)
        for value in signature.inputs(graph, sizes)
    }


@pytest.mark.parametrize("changes", CHOICES, ids=str)
@pytest.mark.parametrize("graph", REQUIRED)
@pytest.mark.parametrize("variant", PRECISIONS)
def test_a_plain_graph_gives_the_same_values_in_the_reference_evaluator(
    variant: str, graph: str, changes: dict[str, Any]
) -> None:
    model = make_model(**changes)
    ranges = calibrate(model.config, arrays_of(model), PAIRS)
    proto = build_variant_graph(variant, graph, model.config, arrays_of(model), ranges)
    assert {node.op_type for node in proto.graph.node if node.domain} <= {"MatMulIntegerToFloat"}
    feeds = feeds_of(graph, model, PRECISIONS[variant].dtype)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    evaluator = ReferenceEvaluator(proto, new_ops=[MatMulIntegerToFloat])
    for name, mine, theirs in zip(names, session.run(names, feeds), evaluator.run(names, feeds), strict=True):
        assert mine.shape == theirs.shape
        if name != "top_ids":  # equals may come in another order
            np.testing.assert_allclose(mine, theirs, atol=TOLERANCES[variant], err_msg=name)
