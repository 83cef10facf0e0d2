"""Limits are computed from the model's sizes, shares from the profiler's events."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attendant.export.bundle import Bundle, read_bundle
from attendant.export.graphs.graphs import sizes_of
from bench.models.random_model import BASE, Shape, prepare
from bench.profile.growth import SWEEPS, draw, exponent, shape_at, work_at
from bench.profile.roofline import (
    IN_A_ROW,
    Step,
    best_of,
    limits_here,
    measure,
    operators,
    shares,
    step_feeds,
    step_parameters,
)

SMALL = Shape(vocabulary=300, d_model=32, d_ff=64, heads=4, layers=2, max_length=64)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return read_bundle(prepare(SMALL, tmp_path_factory.mktemp("cache")).bundle)


def test_a_step_of_the_base_model_has_38_million_weights() -> None:
    assert step_parameters(sizes_of(BASE.config)) == 6 * (6 * 512**2 + 2 * 512 * 2048) + 32_000 * 512


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_step_runs_bound_as_the_engine_binds_it(bundle: Bundle, precision: str) -> None:
    """Twice the same: what a step writes into the cache is what stood there after the one before."""
    step = Step(bundle, precision, 3, 1)
    outputs = step.session.get_outputs()
    wanted = step.session.run(None, step_feeds(step.session, 3))
    top = {output.name: value for output, value in zip(outputs, wanted, strict=True) if output.name.startswith("top_")}
    assert top
    for _ in range(2):
        step()
        found = [value.numpy() for value in step._bound.get_outputs()]
        for value in top.values():
            assert any(each.shape == value.shape and np.allclose(each, value, atol=1e-5) for each in found)


def test_shares_are_by_operator_largest_first_and_the_vocabulary_alone() -> None:
    def event(operator: str, micros: float, width: int) -> dict[str, object]:
        args = {"op_name": operator, "output_type_shape": [{"float": [1, width]}]}
        return {"cat": "Node", "name": "n_kernel_time", "dur": micros, "args": args}

    events = [event("MatMul", 100, 8), event("MatMul", 200, 8), event("MatMul", 600, 300), event("Add", 100, 8)]
    events.append({"cat": "Session", "name": "model_run", "dur": 5000})
    found = shares(events, 300, runs=2)
    assert [(row["operator"], row["ms"], row["share"]) for row in found] == [
        ("MatMul, vocabulary", 0.3, 0.6),
        ("MatMul", 0.15, 0.3),
        ("Add", 0.05, 0.1),
    ]


def test_the_profiler_names_the_operators_of_a_step(bundle: Bundle) -> None:
    found = operators(bundle, "int8", 2, 1, runs=2)
    assert sum(row["share"] for row in found) == pytest.approx(1, abs=0.02)
    assert any(row["operator"].endswith(", vocabulary") for row in found)


def test_the_profiler_leaves_no_file(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    operators(bundle, "int8", 1, 1, runs=1)
    assert [*tmp_path.iterdir()] == []


def test_a_step_is_held_to_the_larger_limit(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.profile.roofline.best_of", lambda turns, _: dict.fromkeys(turns, 0.5))
    monkeypatch.setattr("bench.profile.roofline.operators", lambda *_: [])
    slow = {"bandwidth_gb_s": 1e-4, "fp32_gop_s": 1e-3, "int8_gop_s": 4e-3}
    rows = measure(bundle, slow, 1, 1)
    weights = step_parameters(bundle.sizes)
    for row in rows:
        stream = weights * {"fp32": 4, "int8": 1}[row["precision"]] / 100  # bytes, and bytes in a millisecond
        multiply = 2 * weights * row["rows"] / {"fp32": 1e3, "int8": 4e3}[row["precision"]]
        assert (row["stream_ms"], row["multiply_ms"]) == pytest.approx((stream, multiply), abs=1e-3)
        assert row["times_limit"] == pytest.approx(500 / max(stream, multiply), abs=0.01)
    assert [row["name"] for row in rows if row["goal"]] == ["int8, 1 row", "int8, 32 rows", "int8, 64 rows"]


def test_the_limits_are_those_of_our_own_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of both times, with as many threads; compiled by whoever has a compiler."""
    found = [{"peak_gops": 400.0, "f32_peak_gops": 90.0, "bandwidth_gbs": rate} for rate in (20.0, 25.0)]
    monkeypatch.setattr("bench.profile.roofline.build", lambda directory: directory)
    monkeypatch.setattr("bench.profile.roofline.limits", lambda _, path, threads: found.pop() if threads == 3 else path)
    assert limits_here(3) == {"bandwidth_gb_s": 25.0, "fp32_gop_s": 90.0, "int8_gop_s": 400.0}


def test_the_best_turn_counts_and_all_take_turns() -> None:
    calls: list[str] = []
    found = best_of({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2 * IN_A_ROW)
    assert found.keys() == {"a", "b"}
    assert calls == (["a"] * IN_A_ROW + ["b"] * IN_A_ROW) * 2


def test_the_exponent_of_a_power_is_found() -> None:
    assert exponent({value: 3.0 * value**2 for value in (8, 16, 32, 64)}) == pytest.approx(2)


@pytest.mark.parametrize("sweep", SWEEPS)
def test_a_sweep_changes_one_thing(sweep: str) -> None:
    works = {work_at(sweep, value) for value in SWEEPS[sweep]}
    shapes = {shape_at(sweep, value) for value in SWEEPS[sweep]}
    assert sorted((len(works), len(shapes))) == [1, len(SWEEPS[sweep])]
    assert all(shape.config.d_model % shape.config.heads == 0 for shape in shapes)


def test_growth_is_drawn_as_png(tmp_path: Path) -> None:
    rows = [{"sweep": "batch", "value": value, "ms": 1.0 * value, "peak_mb": 90.0} for value in (1, 2, 4)]
    attention = [
        {"sweep": sweep, "ms": {"8": 1.0, "16": 4.0}, "exponent": 2.0, "expected": 2} for sweep in ("length", "width")
    ]
    drawn = draw(rows, attention, tmp_path)
    assert [path.read_bytes()[:4] for path in drawn] == [b"\x89PNG", b"\x89PNG"]
