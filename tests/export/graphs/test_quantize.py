from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from attendant.export.graphs.builder import Array, GraphBuilder
from attendant.export.graphs.packing import pack
from attendant.export.graphs.quantize import integer_product
from attendant.export.graphs.variants import build_variant_graph
from attendant.export.graphs.weights import arrays_of
from tests.export.graphs.test_graphs import sources, targets
from tests.support.small_models import FOREIGN, make_foreign_model, make_model


def product_of(x: Array, levels: Array, scale: Array, bias: Array) -> Array:
    g = GraphBuilder("product")
    g.input("x", "float32", ["rows", levels.shape[0]])
    weights = [g.weight("packed", pack(levels)), g.weight("scale", scale), g.weight("bias", bias)]
    g.output(integer_product(g, "x", levels.shape, *weights), "y", "float32", ["rows", levels.shape[1]])
    session = ort.InferenceSession(g.build().SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["y"], {"x": x})[0])


@pytest.mark.parametrize(("rows", "columns"), [(16, 32), (4, 33), (7, 5), (130, 96)])
def test_a_product_is_its_definition(rows: int, columns: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, rows)).astype(np.float32) * np.logspace(-6, 6, 9, dtype=np.float32)[:, None]
    x[4] = 0
    levels = rng.integers(-63, 64, (rows, columns)).astype(np.int8)
    padded = -(-columns // 32) * 32
    scale, bias = (rng.normal(size=padded).astype(np.float32) for _ in range(2))
    largest = np.maximum(np.abs(x).max(1, keepdims=True), np.float32(1e-30))
    whole = np.rint(x * (np.float32(127) / largest)).astype(np.int64)
    expected = (whole @ levels.astype(np.int64)) * (largest / 127) * scale[:columns] + bias[:columns]
    found = product_of(x, levels, scale, bias)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert (found[4] == bias[:columns]).all()  # a row of zeros


def test_a_row_with_one_value_far_out_makes_no_other_row_coarse() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 64)).astype(np.float32)
    levels, ones = rng.integers(-63, 64, (64, 32)).astype(np.int8), np.ones(32, np.float32)
    alone = product_of(x, levels, ones, 0 * ones)
    x[3, 7] = 1e6
    together = product_of(x, levels, ones, 0 * ones)
    assert (np.delete(together, 3, 0) == np.delete(alone, 3, 0)).all()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre"},
        {"bias": False},
        {"shared_vocab": True, "source_vocab": 11},
        {"tie": "none"},
        {"score": "gaussian"},
        {"d_model": 14, "d_ff": 9},
        *FOREIGN,
    ],
    ids=str,
)
def test_int8_is_near_f32(changes: dict[str, Any]) -> None:
    model = make_foreign_model(**changes) if changes in FOREIGN else make_model(**changes)
    source, source_length = sources([4, 7, 1])
    feeds = {"source": source, "source_length": source_length, "target": targets(3, 5)}
    found = {}
    for variant in ("fp32", "int8"):
        proto = build_variant_graph(variant, "full", model.config, arrays_of(model))
        session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        found[variant] = session.run(["logprobs"], feeds)[0]
    gated = model.config.activation.startswith("gated")  # which multiplies two rounded products with each other
    assert np.abs(found["int8"] - found["fp32"]).max() < (0.5 if gated else 0.3)
    assert not np.array_equal(found["int8"], found["fp32"])
