"""Runs of small random models on disk, and their bundles: what the tests of export are about."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

from attendant.export import bundle
from attendant.export.make import convert
from attendant.model import checkpoint
from attendant.model.text.tokenizer import learn
from tests.support.small_models import make_model

WORDS = [f"{a}{b}{c}" for a in "abc" for b in "fg" for c in "kl"]


def write_run(directory: Path, pairs: list[tuple[str, str]] | None = None, scale: float = 3.0, **changes: Any) -> Path:
    """A released model that has learnt nothing, its weights large so that its answers are not all alike."""
    directory.mkdir()
    pairs = pairs or [(word, " ".join(word[::-1].upper())) for word in WORDS]
    source, target = learn("chars", WORDS), learn("words", [" ".join("ABCFGKL")])
    model = make_model(source_vocab=source.size, target_vocab=target.size, **{"max_length": 12, "seed": 6} | changes)
    checkpoint.write_json({"model": dataclasses.asdict(model.config)}, directory / checkpoint.CONFIG)
    weights = {name: weight * scale for name, weight in checkpoint.weights_of(model).items()}
    checkpoint.save_weights(weights, directory / checkpoint.MODEL)
    source.save(directory / checkpoint.SOURCE_TOKENIZER)
    target.save(directory / checkpoint.TARGET_TOKENIZER)
    lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
    (directory / checkpoint.SAMPLES).write_text(lines, encoding="utf-8")
    return directory


def export_unproven(run: Path, out: Path, variants: tuple[str, ...] = ("fp32", "int8")) -> Path:
    """A bundle, whatever its proof would say: random weights may be too much for int8."""
    proof = convert.verify
    try:
        convert.verify = lambda *_: []
        convert.convert(run, out, "small", variants)
    finally:
        convert.verify = proof
    return out


def edit_manifest(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    change(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")


def edit_graph(directory: Path, name: str, change: Callable[[onnx.ModelProto], object]) -> None:
    """Change a graph of a bundle and its digest, as one who tampers would."""
    path = directory / name
    model = onnx.load(str(path), load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString())
    edit_manifest(directory, lambda manifest: manifest["files"].update({name: bundle.digest(path)}))


def change_weights(path: Path, out: Path, change: Callable[[dict[str, Any]], Any]) -> Any:
    """Write a graph with weights changed, and kept inside; returns what `change` does."""
    model = onnx.load(str(path))
    arrays = {tensor.name: numpy_helper.to_array(tensor).copy() for tensor in model.graph.initializer}
    returned = change(arrays)
    del model.graph.initializer[:]
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in arrays.items())
    out.write_bytes(model.SerializeToString())
    return returned


def edit_weight(directory: Path, graph: str, name: str, change: Callable[[Any], None]) -> None:
    """Change one weight of one graph only, which then holds it itself."""
    path = directory / graph

    def store(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            if tensor.name == name:
                values = numpy_helper.to_array(tensor, str(path.parent)).copy()
                change(values)
                tensor.CopyFrom(numpy_helper.from_array(values, name))
                return
        raise AssertionError(f"{graph} has no weight {name}")

    edit_graph(directory, graph, store)
