"""A bundle's graphs are compared whole: a change anywhere in any of them is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from attendant.export.bundle import read_bundle
from attendant.export.graphs.builder import SMALLEST_STORED
from attendant.export.verify import same_graphs
from attendant.export.verify.same_graphs import check_graphs
from attendant.export.verify.verify import verify
from attendant.model.checkpoint import TrainedModel, load_trained
from tests.support.exporting import edit_graph, edit_manifest, edit_weight, export_unproven, write_run

GRAPHS = ("encoder", "step", "full", "merge", "kernel_encoder", "kernel_step")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def good(run: Path) -> Path:
    return export_unproven(run, run.parent / "good")


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture(scope="module")
def trained(run: Path) -> TrainedModel:
    return load_trained(run)


def problems(directory: Path, trained: TrainedModel) -> list[str]:
    bundle = read_bundle(directory)
    return [f"{name} {p}" for name, variant in bundle.variants.items() for p in check_graphs(variant, trained)]


def test_the_graphs_of_an_export_are_those_of_its_checkpoint(good: Path, trained: TrainedModel) -> None:
    assert problems(good, trained) == []


def test_no_graph_is_put_together_with_its_weights(
    good: Path, trained: TrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[onnx.ModelProto] = []
    monkeypatch.setattr(same_graphs, "compare_nodes", lambda _, *models: compared.extend(models) or [])
    assert problems(good, trained) == []
    largest = max(tensor.ByteSize() for model in compared for tensor in model.graph.initializer)
    assert len(compared) == 2 * 2 * len(GRAPHS)  # of two variants, the stored and the rebuilt
    assert largest < SMALLEST_STORED + 200  # a name, a shape, and a small array at most


@pytest.mark.parametrize("graph", [name for name in GRAPHS if name != "merge"])
@pytest.mark.parametrize("variant", ["fp32", "int8"])
def test_a_weight_changed_in_one_graph_only_is_named(
    variant: str, graph: str, copy: Path, trained: TrainedModel
) -> None:
    stack = "encoder" if graph.endswith("encoder") else "decoder"
    weight = f"{stack}.1.feed_forward.narrow.weight {'scale' if variant == 'int8' else 'packed'}"

    def perturb(values: Any) -> None:
        values.flat[2] *= 1.5

    edit_weight(copy, f"{variant}/{graph}.onnx", weight, perturb)
    found = problems(copy, trained)
    assert len(found) == 1
    assert f"{variant} {graph}: weight {weight} is not the checkpoint's: worst at" in found[0]


def _epsilon(model: onnx.ModelProto) -> None:
    node = next(n for n in model.graph.node if n.op_type == "LayerNormalization")
    next(a for a in node.attribute if a.name == "epsilon").f = 1e-3


def _other_heads(model: onnx.ModelProto) -> None:
    node = next(n for n in model.graph.node if n.op_type == "DecoderLayer")
    next(a for a in node.attribute if a.name == "heads").i = 4


def _other_definition(model: onnx.ModelProto) -> None:
    function = next(f for f in model.functions if f.name == "EncoderLayer")
    next(n for n in function.node if n.op_type == "Softmax").attribute[0].i = 1


def _dropped_node(model: onnx.ModelProto) -> None:
    node = next(n for n in model.graph.node if n.op_type == "Add")
    node.op_type = "Sub"


def _more_nodes(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Identity", [model.graph.output[0].name], ["more"]))


def _axis(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2


def _metadata(model: onnx.ModelProto) -> None:
    model.metadata_props.add(key="note", value="changed")


@pytest.mark.parametrize(
    ("graph", "change", "sentence"),
    [
        ("full", _epsilon, "LayerNormalization("),
        ("kernel_step", _other_heads, "heads=4"),
        ("kernel_encoder", _other_definition, "the function EncoderLayer is not this version's"),
        ("encoder", _dropped_node, "is Sub("),
        ("step", _more_nodes, "nodes, not"),
        ("merge", _axis, "input 0 is"),
        ("kernel_encoder", _metadata, "fields beside nodes, weights, inputs and outputs differ"),
    ],
)
def test_a_changed_node_attribute_or_field_is_named(
    graph: str, change: Callable[[onnx.ModelProto], None], sentence: str, copy: Path, trained: TrainedModel
) -> None:
    edit_graph(copy, f"int8/{graph}.onnx", change)
    found = problems(copy, trained)
    assert len(found) == 1
    assert found[0].startswith(f"int8 {graph}: ")
    assert sentence in found[0]


def test_a_missing_kernel_graph_is_named(copy: Path, trained: TrainedModel) -> None:
    (copy / "int8" / "kernel_step.onnx").unlink()

    def forget(manifest: dict[str, Any]) -> None:
        del manifest["files"]["int8/kernel_step.onnx"], manifest["variants"]["int8"]["graphs"]["kernel_step"]

    edit_manifest(copy, forget)
    assert problems(copy, trained) == ["int8 kernel_step: the graph is missing"]


def test_a_merge_graph_that_picks_other_rows_is_found_without_a_checkpoint(copy: Path) -> None:
    def wrong(model: onnx.ModelProto) -> None:
        node = next(
            n for n in model.graph.node if n.op_type == "Concat" and "held" not in n.input and len(n.input) == 2
        )
        node.input[0], node.input[1] = node.input[1], node.input[0]

    edit_graph(copy, "fp32/merge.onnx", wrong)
    assert any("merge: rows of length" in problem for problem in verify(read_bundle(copy)))
