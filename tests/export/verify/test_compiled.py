"""Compiled int8 operators are held to their definitions, and a wrong one is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attendant import kernels
from attendant.export.graphs.graphs import sizes_of
from attendant.export.graphs.weights import arrays_of
from attendant.export.make.convert import write_graphs
from attendant.export.verify import compiled
from attendant.export.verify.compiled import ComparingRunner, check_compiled, difference
from attendant.model.transformer import Transformer
from tests.support.small_models import FOREIGN, make_model, with_random_biases

needs_library = pytest.mark.skipif(not kernels.library(), reason=kernels.why_missing() or "there is a library")


def graphs_in(directory: Path, model: Transformer) -> dict[str, Path]:
    write_graphs("int8", model.config, arrays_of(model), directory / "int8")
    return {name: directory / "int8" / f"{name}.onnx" for name in ("kernel_encoder", "kernel_step")}


@needs_library
@pytest.mark.parametrize(
    "changes",
    [{}, {"norm": "pre", "activation": "gelu"}, {"bias": False, "activation": "silu", "target_vocab": 45}, *FOREIGN],
    ids=str,
)
def test_every_operator_computes_its_definition(changes: dict[str, Any], tmp_path: Path) -> None:
    model = with_random_biases(make_model(**{"max_length": 12} | changes))
    assert list(check_compiled(graphs_in(tmp_path, model), sizes_of(model.config))) == []


@needs_library
def test_an_operator_that_computes_something_else_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_random_biases(make_model(max_length=12))
    alone = ComparingRunner._alone

    def wrong(self: Any, graph: str, operator: Any, values: Any) -> Any:
        """The operator with the weights of its first product read as those of another."""
        found = alone(self, graph, operator, values)
        if operator.node.op_type == "EncoderLayer":
            names = found.graph.node[0].input
            names[7], names[11] = names[11], names[7]
        return found

    monkeypatch.setattr(compiled.ComparingRunner, "_alone", wrong)
    found = list(check_compiled(graphs_in(tmp_path, model), sizes_of(model.config)))
    assert len(found) == model.config.encoder_layers
    assert all("EncoderLayer" in problem and "does not compute its definition" in problem for problem in found)


@pytest.mark.parametrize(
    ("found", "expected", "problem"),
    [
        ([1.0, 2.0], [1.0, 2.0], ""),
        ([1.0, 2.01], [1.0, 2.0], ""),
        ([1.0, 2.5], [1.0, 2.0], "off by up to 0.5 of 2"),
        ([np.nan, 2.0], [1.0, 2.0], "off by"),
        ([1.0], [1.0, 2.0], r"float64 (1,), not float64 (2,)"),
        ([], [], ""),
    ],
)
def test_a_difference_is_told_from_rounding(found: list[float], expected: list[float], problem: str) -> None:
    said = difference(np.array(found), np.array(expected))
    assert said.startswith(problem)
    assert bool(said) == bool(problem)


def test_the_log_probability_of_a_token_that_is_certain_may_be_rounded() -> None:
    certain, rounded = np.array([-3.6e-6]), np.array([-1.9e-6])
    assert difference(rounded, certain) != ""
    assert difference(rounded, certain, compiled.LOGPROBS) == ""
    assert difference(certain - 2e-4, certain, compiled.LOGPROBS) != ""
