"""int8 graphs against their torch reference, which finds every mistake that it is shown."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export import int8_reference as module
from export.calibration import Range, calibrate
from export.compare import check_int8_values, grid
from export.convert import write_graphs
from export.fast import can_be_fast
from export.graphs import sizes_of
from export.int8_reference import follow, int8_reference
from export.runner import GraphStepper, Runner
from export.variants import graphs_of
from export.weights import arrays_of
from model.decode import decode_sources
from model.transformer import Transformer
from tests.conftest import make_model
from tests.exporting import change_weights

PAIRS = [([4, 5, 6], [7, 8]), ([9, 10], [4]), ([5] * 9, [6] * 5), ([8], [9, 10, 5]), ([12, 11, 7, 4], [8, 9])]
SOURCES = [[4, 5, 6], [9], [12, 11, 10, 9, 8, 7], [5] * 11]
CHOICES: list[dict[str, Any]] = [
    {},
    {"norm": "pre", "activation": "gelu"},
    {"bias": False, "activation": "silu"},
    {"tie": "none"},
    {"shared_vocab": True, "source_vocab": 11},
    {"score": "gaussian"},
    {"score": "additive", "positions": "learned"},
    {"d_ff": 1100, "decoder_layers": 1},
    {"max_length": 4},
    {"max_length": 64},
]


def make(**changes: Any) -> Transformer:
    """A random model, with biases and norms that are not what they are initialised to."""
    model = make_model(**{"max_length": 12} | changes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape))
            elif "tokens" not in name:
                parameter.mul_(1.5)
    return model


def pairs_of(model: Transformer) -> list[tuple[list[int], list[int]]]:
    """What it is calibrated on, cut to what it can read."""
    most, vocab = model.config.max_length - 1, model.config.source_vocab
    return [([min(t, vocab - 1) for t in source[:most]], target[:most]) for source, target in PAIRS]


def graphs_in(directory: Path, model: Transformer, ranges: dict[str, Range]) -> dict[str, Path]:
    write_graphs("int8", model.config, arrays_of(model), ranges, directory / "int8")
    return {name: directory / "int8" / f"{name}.onnx" for name in graphs_of("int8", model.config)}


def problems(
    graphs: dict[str, Path], model: Transformer, ranges: dict[str, Range], fast: bool, sources: list[list[int]]
) -> Iterator[str]:
    """Of the graphs over the grid, and along their greedy answers to some sources."""
    names = ("fast_encoder", "fast_step") if fast else ("encoder", "step", "full")
    graphs = {name: graphs[name] for name in names}
    runner = Runner(graphs, sizes_of(model.config))
    answers = list(zip(sources, decode_sources(GraphStepper(runner), sources), strict=True)) if sources else []
    calibration = {name: dataclasses.asdict(values) for name, values in ranges.items()}
    yield from check_int8_values(runner, graphs, model, calibration, fast, answers)


def first_problem(graphs: dict[str, Path], model: Transformer, ranges: dict[str, Range], fast: bool = True) -> str:
    return next(problems(graphs, model, ranges, fast, []), "")


@pytest.mark.parametrize("changes", CHOICES, ids=str)
def test_every_choice_gives_the_references_levels_log_probabilities_and_tokens(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    model = make(**changes)
    ranges = calibrate(model.config, arrays_of(model), pairs_of(model))
    graphs = graphs_in(tmp_path, model, ranges)
    most, vocab = model.config.max_length - 1, model.config.source_vocab
    sources = [[min(t, vocab - 1) for t in ids[:most]] for ids in SOURCES]
    for fast in (False, True) if can_be_fast(model.config) else (False,):
        assert list(problems(graphs, model, ranges, fast, sources)) == []


@pytest.fixture(scope="module")
def model() -> Transformer:
    return make()


@pytest.fixture(scope="module")
def ranges(model: Transformer) -> dict[str, Range]:
    return calibrate(model.config, arrays_of(model), PAIRS)


@pytest.fixture(scope="module")
def graphs(model: Transformer, ranges: dict[str, Range], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return graphs_in(tmp_path_factory.mktemp("graphs"), model, ranges)


def tampered(graphs: dict[str, Path], directory: Path, change: Callable[[dict[str, Any]], bool]) -> dict[str, Path]:
    """Copies of the graphs with weights changed, and kept inside; at least one must be."""
    changed, copies = False, {}
    for name, path in graphs.items():
        copies[name] = directory / f"{name}.onnx"
        changed |= change_weights(path, copies[name], change)
    assert changed
    return copies


BIASES = [
    "encoder.1.self_attention.project_in.bias",
    "encoder.0.feed_forward.narrow.bias",
    "decoder.0.self_attention.project_in.bias",
    "decoder.1.self_attention.project_out.bias",
    "decoder.1.cross_attention.project_in.bias queries",
    "decoder.0.cross_attention.project_in.bias keys_values",
    "decoder.0.cross_attention.project_out.bias",
    "decoder.1.feed_forward.widen.bias",
    "decoder.1.feed_forward.narrow.bias",
]


@pytest.mark.parametrize(("bias", "fast"), [(bias, True) for bias in BIASES] + [(bias, False) for bias in BIASES[:3]])
def test_one_bias_zeroed_is_found(
    bias: str, fast: bool, graphs: dict[str, Path], model: Transformer, ranges: dict[str, Range], tmp_path: Path
) -> None:
    def zero(arrays: dict[str, Any]) -> bool:
        for name in (bias, f"{bias} in units"):
            if name in arrays:
                arrays[name][:] = 0
                return True
        return False

    assert first_problem(tampered(graphs, tmp_path, zero), model, ranges, fast)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(
    "scale", ["encoder.0.self_attention.project_out.weight", "decoder.1.feed_forward.widen.weight", "output.weight"]
)
def test_the_scale_of_one_column_of_a_weight_off_by_a_tenth_is_found(
    scale: str, fast: bool, graphs: dict[str, Path], model: Transformer, ranges: dict[str, Range], tmp_path: Path
) -> None:
    def stretch(arrays: dict[str, Any]) -> bool:
        if f"{scale} scale" in arrays:
            arrays[f"{scale} scale"][5] *= 1.1
            return True
        return False

    assert first_problem(tampered(graphs, tmp_path, stretch), model, ranges, fast)


class Shifted(Range):
    """A range whose zero point is off by one."""

    @property
    def zero_point(self) -> int:
        return super().zero_point - 1


def widened(values: Range) -> Range:
    return dataclasses.replace(values, low=1.1 * values.low, high=1.1 * values.high)


def shifted(values: Range) -> Range:
    return Shifted(values.low, values.high, values.cached)


def stretched_cache(values: Range) -> Range:
    return dataclasses.replace(values, cached=[1.1 * largest for largest in values.cached])


@pytest.mark.parametrize(
    ("product", "change", "fast"),
    [
        (product, change, fast)
        for fast in (False, True)
        for change in (widened, shifted)
        for product in (
            "encoder.1.feed_forward.widen.weight",
            "decoder.0.self_attention.project_out.weight",
            "decoder.1.cross_attention.project_in.weight keys_values",
            "output.weight",
        )
    ]
    + [
        ("decoder.1.self_attention.project_in.weight", stretched_cache, True),
        ("decoder.0.cross_attention.project_in.weight keys_values", stretched_cache, True),
    ],
)
def test_an_activations_scale_or_zero_point_or_a_cache_scale_that_is_off_is_found(
    product: str,
    change: Callable[[Range], Range],
    fast: bool,
    model: Transformer,
    ranges: dict[str, Range],
    tmp_path: Path,
) -> None:
    wrong = graphs_in(tmp_path, model, ranges | {product: change(ranges[product])})
    found = first_problem(wrong, model, ranges, fast)
    attention = product.partition(".project_in")[0]
    culprit = f"{attention} key" if change is stretched_cache else product
    assert culprit in found  # the first wrong quantizer is named


def test_a_norm_weight_off_by_a_hundredth_is_found(
    graphs: dict[str, Path], model: Transformer, ranges: dict[str, Range], tmp_path: Path
) -> None:
    def nudge(arrays: dict[str, Any]) -> bool:
        if "decoder.1.feed_residual.norm.weight" in arrays:
            arrays["decoder.1.feed_residual.norm.weight"][3] *= 1.01
            return True
        return False

    assert first_problem(tampered(graphs, tmp_path, nudge), model, ranges)


def test_a_mistake_in_the_full_graph_alone_is_found(
    graphs: dict[str, Path], model: Transformer, ranges: dict[str, Range], tmp_path: Path
) -> None:
    def zero(arrays: dict[str, Any]) -> bool:
        changed = arrays.get("decoder.1.feed_forward.narrow.bias")
        if changed is not None:
            changed[:] = 0
        return changed is not None

    wrong = graphs | {"full": tampered(graphs, tmp_path, zero)["full"]}
    assert first_problem(wrong, model, ranges, fast=False).startswith("levels are off at batch 1")


def test_a_token_that_the_reference_would_not_choose_is_found(
    graphs: dict[str, Path], model: Transformer, ranges: dict[str, Range]
) -> None:
    runner = Runner({name: graphs[name] for name in ("fast_encoder", "fast_step")}, sizes_of(model.config))
    answer = decode_sources(GraphStepper(runner), SOURCES[:1])[0]
    answer[2] = 4 + (answer[2] - 3) % 7  # any other
    calibration = {name: dataclasses.asdict(values) for name, values in ranges.items()}
    found = list(check_int8_values(runner, graphs, model, calibration, True, [(SOURCES[0], answer)]))
    assert len(found) == 1
    assert f"the graph chooses token {answer[2]} at position 2" in found[0]


def test_on_its_own_the_reference_is_int8_and_not_far_from_f32(model: Transformer, ranges: dict[str, Range]) -> None:
    calibration = {name: dataclasses.asdict(values) for name, values in ranges.items()}
    inputs = list(grid(sizes_of(model.config)))[3]
    source, target = torch.from_numpy(inputs.source), torch.from_numpy(inputs.target)
    with torch.inference_mode():
        exact = model(source, target).log_softmax(-1)
    for int8_caches in (False, True):
        found, _ = follow(int8_reference(model, calibration, int8_caches), None, source, target)
        assert 1e-3 < float((found - exact).abs().mean()) < 0.3


def test_the_reference_shares_no_code_with_the_graph_builder() -> None:
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert imported == {
        "__future__",
        "copy",
        "collections.abc",
        "typing",
        "torch",
        "model.attention",
        "model.config",
        "model.transformer",
    }


def test_nan_from_a_graph_is_found(
    graphs: dict[str, Path], model: Transformer, ranges: dict[str, Range], tmp_path: Path
) -> None:
    def spoil(arrays: dict[str, Any]) -> bool:
        if "output.weight scale" in arrays:
            arrays["output.weight scale"][5] = np.nan
            return True
        return False

    assert first_problem(tampered(graphs, tmp_path, spoil), model, ranges)
