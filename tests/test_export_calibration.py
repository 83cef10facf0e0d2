"""Ranges: which levels the inputs of matrix products are rounded to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from export.bundle import BundleError
from export.calibration import BINS, Observed, Range, calibrate, observe
from export.weights import arrays_of
from tests.conftest import make_model
from tests.test_export_quantize import PAIRS


def observed(values: np.ndarray) -> Observed:
    low, high = float(values.min()), float(values.max())
    return Observed(low, high, np.histogram(values, BINS, (low, high))[0])


def error(chosen: Range, values: np.ndarray) -> float:
    return float(((chosen.rounded(values) - values) ** 2).sum())


def test_a_value_far_out_does_not_make_all_others_coarse() -> None:
    values = np.append(np.random.default_rng(0).normal(size=100_000), 8.0)
    chosen = observed(values).choices()[0]
    assert chosen.high < 7
    assert error(chosen, values) < 0.9 * error(Range(values.min(), values.max()), values)


def test_values_far_out_that_weigh_more_than_the_rounding_are_kept() -> None:
    values = np.append(np.random.default_rng(0).normal(size=10_000), [400.0] * 100)
    assert observed(values).choices()[0].high == pytest.approx(400)


@pytest.mark.parametrize("values", [[0.0, 0.0], [0.0, 3.0], [-2.0, 0.0], [1.0, 2.0], [-2.0, -1.0]])
def test_a_range_is_found_for_values_of_one_sign_and_for_none(values: list[float]) -> None:
    array = np.array(values)
    chosen = observed(array).choices()[0]
    assert chosen.scale > 0
    assert 0 <= chosen.zero_point <= 255
    assert np.abs(chosen.rounded(array) - array).max() <= 0.051 * np.abs(array).max()


def test_the_choices_are_as_good_as_the_best_on_the_values_themselves() -> None:
    values = np.random.default_rng(1).standard_t(5, size=50_000)
    choices = observed(values).choices()
    least = min(error(Range(a * values.min(), b * values.max()), values) for a in (1, 0.8, 0.6) for b in (1, 0.8, 0.6))
    assert all(error(choice, values) <= 1.03 * least for choice in choices)


def test_every_input_is_seen_whole_and_calibration_takes_the_first_choice() -> None:
    model = make_model()
    found, ranges = (work(model.config, arrays_of(model), PAIRS) for work in (observe, calibrate))
    sources, targets = (sum(len(pair[side]) + 1 for pair in PAIRS) for side in (0, 1))
    for name, each in found.items():
        of_source = name.startswith("encoder.") or name.endswith("keys_values")
        features = model.config.d_ff if name.endswith("narrow.weight") else model.config.d_model
        assert each.counts.sum() == features * (sources if of_source else targets), name
        assert each.low <= each.high
        assert each.choices()[0] == ranges[name]


def test_a_model_whose_activations_overflow_is_refused_by_name() -> None:
    model = make_model()
    weights = arrays_of(model)
    name = "encoder.0.feed_forward.widen.weight"
    weights[name] = np.full_like(weights[name], 3e38)
    with pytest.raises(BundleError, match=r"encoder\.0\.feed_forward\.narrow\.weight becomes NaN or infinity"):
        observe(model.config, weights, PAIRS)


class Sessions:
    """Stands in for onnxruntime's sessions and notes what each was created from, while that is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, embed: bool = False) -> None:
        self.embed, self.create = embed, ort.InferenceSession
        self.graph_bytes: list[int] = []
        self.beside: list[list[str]] = []
        monkeypatch.setattr(ort, "InferenceSession", self)

    def __call__(self, model: str | bytes, *arguments: Any, **options: Any) -> ort.InferenceSession:
        if isinstance(model, bytes):
            self.graph_bytes.append(len(model))
            self.beside.append([])
        else:
            self.graph_bytes.append(Path(model).stat().st_size)
            self.beside.append(sorted(path.name for path in Path(model).parent.iterdir()))
        held = onnx.load(model).SerializeToString() if self.embed else model
        return self.create(held, *arguments, **options)


def test_calibration_keeps_the_weights_out_of_the_graph_whose_size_protobuf_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_model(d_model=128, d_ff=512)
    arrays = arrays_of(model)
    sessions = Sessions(monkeypatch)
    calibrate(model.config, arrays, PAIRS)
    [size], [files] = sessions.graph_bytes, sessions.beside
    assert size < sum(array.nbytes for array in arrays.values()) / 10
    assert files == ["full.onnx", "weights.bin"]


def test_ranges_are_the_same_whether_the_weights_are_in_the_graph_or_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    beside = calibrate(model.config, arrays_of(model), PAIRS)
    Sessions(monkeypatch, embed=True)
    assert calibrate(model.config, arrays_of(model), PAIRS) == beside


def test_start_tokens_are_calibrated_before_every_target() -> None:
    model, start = make_model(), [5, 7]
    arrays = arrays_of(model)
    written_out = [(source, [*start, *target]) for source, target in PAIRS]
    found = calibrate(model.config, arrays, PAIRS, start)
    assert found == calibrate(model.config, arrays, written_out)
    assert found != calibrate(model.config, arrays, PAIRS)
