from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

from export.calibration import Range, calibrate
from export.graphs import build_graph
from export.quantize import WEIGHT_LEVELS, Int8Parts, quantize_columns
from export.weights import arrays_of
from tests.conftest import FOREIGN, make_foreign_model, make_model
from tests.test_export_graphs import sources, targets

PAIRS = [([4, 5, 6], [7, 8]), ([9, 10], [4]), ([5] * 9, [6] * 5), ([8], [9, 10, 5])]


def test_a_weight_is_at_most_half_a_level_off_and_uses_seven_bits() -> None:
    weight = np.random.default_rng(0).normal(size=(40, 7)).astype(np.float32)
    levels, scale = quantize_columns(weight)
    assert np.abs(levels).max(axis=0).tolist() == [WEIGHT_LEVELS] * 7
    assert (np.abs(levels * scale - weight) <= scale / 2 + 1e-7).all()


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 5.0), (-3.0, 0.5), (0.0, 0.0), (1.0, 2.0), (-2.0, -1.0)])
def test_a_range_covers_its_values_and_zero_is_a_level(low: float, high: float) -> None:
    found = Range(low, high)
    assert 0 <= found.zero_point <= 255
    for value in (low, high):
        level = np.clip(np.rint(value / found.scale) + found.zero_point, 0, 255)
        assert (level - found.zero_point) * found.scale == pytest.approx(value, abs=found.scale)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre"},
        {"bias": False},
        {"shared_vocab": True, "source_vocab": 11},
        {"tie": "none"},
        {"score": "gaussian"},
        *FOREIGN,
    ],
    ids=str,
)
def test_int8_is_near_f32_in_both_ways_of_computing_it(changes: dict[str, object]) -> None:
    model = make_foreign_model(**changes) if changes in FOREIGN else make_model(**changes)
    arrays = arrays_of(model)
    source, source_length = sources([4, 7, 1])
    target = targets(3, 5)
    pairs = zip(source, source_length, target, strict=True)
    ranges = calibrate(model.config, arrays, [(s[: n - 1].tolist(), t[1:].tolist()) for s, n, t in pairs])
    feeds = {"source": source, "source_length": source_length, "target": target}
    found = {}
    for name, parts in (
        ("f32", None),
        ("fused", partial(Int8Parts, ranges=ranges, fused=True)),
        ("standard", partial(Int8Parts, ranges=ranges, fused=False)),
    ):
        proto = build_graph("full", model.config, arrays, make_parts=parts)
        if name == "standard":
            onnx.checker.check_model(proto, full_check=True)
            assert {node.domain for node in proto.graph.node} == {""}
            reference = ReferenceEvaluator(proto).run(["logprobs"], feeds)[0]
        session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        found[name] = session.run(["logprobs"], feeds)[0]
    assert np.abs(found["fused"] - found["f32"]).max() < 0.3
    assert not np.array_equal(found["fused"], found["f32"])
    np.testing.assert_allclose(found["standard"], found["fused"], atol=0.05)
    np.testing.assert_allclose(reference, found["standard"], atol=0.05)


def test_calibration_sees_every_product_and_no_padding() -> None:
    model = make_model()
    ranges = calibrate(model.config, arrays_of(model), PAIRS)
    layers = model.config.encoder_layers * 4 + model.config.decoder_layers * 7
    assert len(ranges) == layers + 1
    relu_inputs = [r for name, r in ranges.items() if name.endswith("narrow.weight")]
    assert all(r.low >= 0 for r in relu_inputs)
