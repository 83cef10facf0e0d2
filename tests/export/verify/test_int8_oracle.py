"""int8 graphs against their torch reference, which finds every mistake that it is shown."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attendant.export.graphs import definitions, quantize
from attendant.export.graphs.graphs import sizes_of
from attendant.export.graphs.variants import graphs_of
from attendant.export.graphs.weights import arrays_of
from attendant.export.make.convert import write_graphs
from attendant.export.runner import DEFINITIONS, PLAIN, GraphStepper, Runner
from attendant.export.verify import int8_reference as module
from attendant.export.verify.compare import check_int8_values, grid
from attendant.export.verify.int8_reference import follow, int8_reference
from attendant.model.search.decode import decode_sources
from attendant.model.transformer import Transformer
from tests.support.exporting import change_weights
from tests.support.small_models import make_model

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


def graphs_in(directory: Path, model: Transformer) -> dict[str, Path]:
    write_graphs("int8", model.config, arrays_of(model), directory / "int8")
    return {name: directory / "int8" / f"{name}.onnx" for name in graphs_of("int8", model.config)}


def problems(graphs: dict[str, Path], model: Transformer, way: str, sources: list[list[int]]) -> Iterator[str]:
    """Of the graphs over the grid, and along their greedy answers to some sources."""
    runner = Runner(graphs, sizes_of(model.config), way)
    answers = list(zip(sources, decode_sources(GraphStepper(runner), sources), strict=True)) if sources else []
    yield from check_int8_values(runner, graphs, model, answers)


def first_problem(graphs: dict[str, Path], model: Transformer, way: str = DEFINITIONS) -> str:
    return next(problems(graphs, model, way, []), "")


@pytest.mark.parametrize("changes", CHOICES, ids=str)
def test_every_choice_gives_the_references_levels_log_probabilities_and_tokens(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    model = make(**changes)
    graphs = graphs_in(tmp_path, model)
    most, vocab = model.config.max_length - 1, model.config.source_vocab
    sources = [[min(t, vocab - 1) for t in ids[:most]] for ids in SOURCES]
    for way in (PLAIN, DEFINITIONS) if "kernel_step" in graphs else (PLAIN,):
        assert list(problems(graphs, model, way, sources)) == []


@pytest.fixture(scope="module")
def model() -> Transformer:
    return make()


@pytest.fixture(scope="module")
def graphs(model: Transformer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return graphs_in(tmp_path_factory.mktemp("graphs"), model)


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


@pytest.mark.parametrize(
    ("bias", "way"), [(bias, DEFINITIONS) for bias in BIASES] + [(bias, PLAIN) for bias in BIASES[:3]]
)
def test_one_bias_zeroed_is_found(
    bias: str, way: str, graphs: dict[str, Path], model: Transformer, tmp_path: Path
) -> None:
    def zero(arrays: dict[str, Any]) -> bool:
        if bias in arrays:
            arrays[bias][:] = 0
            return True
        return False

    assert first_problem(tampered(graphs, tmp_path, zero), model, way)


@pytest.mark.parametrize("way", [PLAIN, DEFINITIONS])
@pytest.mark.parametrize(
    "scale", ["encoder.0.self_attention.project_out.weight", "decoder.1.feed_forward.widen.weight", "output.weight"]
)
def test_the_scale_of_one_column_of_a_weight_off_by_a_tenth_is_found(
    scale: str, way: str, graphs: dict[str, Path], model: Transformer, tmp_path: Path
) -> None:
    def stretch(arrays: dict[str, Any]) -> bool:
        if f"{scale} scale" in arrays:
            arrays[f"{scale} scale"][5] *= 1.1
            return True
        return False

    assert first_problem(tampered(graphs, tmp_path, stretch), model, way)


@pytest.mark.parametrize("way", [PLAIN, DEFINITIONS])
@pytest.mark.parametrize("levels", [126, 128])
def test_a_token_scale_that_is_off_is_found(
    levels: int, way: str, model: Transformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounded to one level more or less, results are as near to f32: only the levels show it."""
    monkeypatch.setattr(quantize, "ACTIVATION_LEVELS", levels)
    found = first_problem(graphs_in(tmp_path, model), model, way)
    assert "encoder.0.self_attention.project_in.weight is" in found  # the first wrong quantizer is named


def test_a_cache_with_the_scale_of_another_head_or_side_is_found(
    model: Transformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_row = quantize.quantize_rows

    def with_first_scale(g: Any, x: str) -> tuple[str, str]:
        scale = by_row(g, x)[1]
        first = g.op("Gather", scale, g.constant([0]), axis=1)
        return g.op("Round", g.op("Div", x, first)), g.op("Add", first, g.op("Sub", scale, scale))

    monkeypatch.setattr(definitions, "quantize_rows", with_first_scale)
    found = first_problem(graphs_in(tmp_path, model), model)
    assert re.search(r"decoder.0.cross_attention (key|value) is \d+ levels from its value", found)


def test_a_norm_weight_off_by_a_hundredth_is_found(graphs: dict[str, Path], model: Transformer, tmp_path: Path) -> None:
    def nudge(arrays: dict[str, Any]) -> bool:
        if "decoder.1.feed_residual.norm.weight" in arrays:
            arrays["decoder.1.feed_residual.norm.weight"][3] *= 1.01
            return True
        return False

    assert first_problem(tampered(graphs, tmp_path, nudge), model)


def test_a_mistake_in_the_full_graph_alone_is_found(
    graphs: dict[str, Path], model: Transformer, tmp_path: Path
) -> None:
    def zero(arrays: dict[str, Any]) -> bool:
        changed = arrays.get("decoder.1.feed_forward.narrow.bias")
        if changed is not None:
            changed[:] = 0
        return changed is not None

    wrong = graphs | {"full": tampered(graphs, tmp_path, zero)["full"]}
    assert first_problem(wrong, model, PLAIN).startswith("levels are off at batch 1")


def test_a_token_that_the_reference_would_not_choose_is_found(graphs: dict[str, Path], model: Transformer) -> None:
    runner = Runner(graphs, sizes_of(model.config), DEFINITIONS)
    answer = decode_sources(GraphStepper(runner), SOURCES[:1])[0]
    answer[2] = 4 + (answer[2] - 3) % 7  # any other
    found = list(check_int8_values(runner, graphs, model, [(SOURCES[0], answer)]))
    assert len(found) == 1
    assert f"the graph chooses token {answer[2]} at position 2" in found[0]


def test_on_its_own_the_reference_is_int8_and_not_far_from_f32(model: Transformer) -> None:
    inputs = list(grid(sizes_of(model.config)))[3]
    source, target = torch.from_numpy(inputs.source), torch.from_numpy(inputs.target)
    with torch.inference_mode():
        exact = model(source, target).log_softmax(-1)
    for int8_caches in (False, True):
        found, _ = follow(int8_reference(model, int8_caches), None, source, target)
        assert 1e-3 < float((found - exact).abs().mean()) < 0.3


def test_the_reference_shares_no_code_with_the_graph_builder() -> None:
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert imported == {
        "__future__",
        "copy",
        "collections.abc",
        "contextlib",
        "torch",
        "attendant.model.attention",
        "attendant.model.config",
        "attendant.model.transformer",
    }


def test_nan_from_a_graph_is_found(graphs: dict[str, Path], model: Transformer, tmp_path: Path) -> None:
    def spoil(arrays: dict[str, Any]) -> bool:
        if "output.weight scale" in arrays:
            arrays["output.weight scale"][5] = np.nan
            return True
        return False

    assert first_problem(tampered(graphs, tmp_path, spoil), model)
