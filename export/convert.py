"""From a checkpoint to a bundle: graphs, tokenizers, certificate, and the proof before it gets its name."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import shutil
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch

from export.builder import WeightStore
from export.bundle import Bundle, BundleError, digest, read_bundle, write_bundle
from export.certificate import make_certificate
from export.graphs import build_graph, sizes_of
from export.signature import GRAPHS
from export.verify import verify
from export.weights import arrays_of
from model import checkpoint
from model.checkpoint import TrainedModel
from model.data import read_references
from model.tokenizer import BOS, EOS, PAD, UNK

WEIGHTS = "weights.bin"
TOLERANCES = {"fp32": 1e-4}  # of a log-probability, against torch
HELD_OUT = 1000  # sources that must decode to torch's tokens
TOKENIZERS = {"source": "tokenizers/source.json", "target": "tokenizers/target.json"}


class VerificationError(BundleError):
    """The graphs are not the model; every problem is in the message."""


def convert(run: Path, out: Path, name: str, force: bool = False) -> Bundle:
    """Write a bundle of a trained run, if it proves to be the same model."""
    trained = checkpoint.load_trained(run)
    texts = held_out_sources(run, trained)

    def fill(directory: Path) -> dict[str, Any]:
        (directory / "tokenizers").mkdir()
        shutil.copyfile(run / checkpoint.SOURCE_TOKENIZER, directory / TOKENIZERS["source"])
        shutil.copyfile(run / checkpoint.TARGET_TOKENIZER, directory / TOKENIZERS["target"])
        write_graphs(trained, directory / "fp32")
        return describe(run, trained, name, make_certificate(trained, texts))

    def prove(bundle: Bundle) -> None:
        problems = verify(bundle, trained, texts)
        if problems:
            raise VerificationError(
                "\n".join(["the exported graphs are not the model, so nothing is written:", *problems])
            )

    write_bundle(out, fill, prove, force)
    return read_bundle(out)


def held_out_sources(run: Path, trained: TrainedModel) -> list[str]:
    """Distinct sources of the run's samples that the model can read."""
    texts = list(read_references(run / checkpoint.SAMPLES))
    ids = trained.source.encode_batch(texts)
    fitting = [text for text, encoded in zip(texts, ids, strict=True) if len(encoded) < trained.config.max_length]
    return fitting[:HELD_OUT]


def write_graphs(trained: TrainedModel, directory: Path) -> None:
    directory.mkdir()
    store, arrays = WeightStore(), arrays_of(trained.model)
    for graph in GRAPHS:
        model = build_graph(graph, trained.config, arrays, store, WEIGHTS)
        (directory / f"{graph}.onnx").write_bytes(model.SerializeToString(deterministic=True))
    store.write(directory / WEIGHTS)
    for graph in GRAPHS:
        onnx.checker.check_model(str(directory / f"{graph}.onnx"), full_check=True)


def describe(run: Path, trained: TrainedModel, name: str, certificate: dict[str, Any]) -> dict[str, Any]:
    """The manifest, but for its format and files."""
    limit = trained.config.max_length
    return {
        "name": name,
        "sizes": dataclasses.asdict(sizes_of(trained.config)),
        "special_ids": {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS},
        "limits": {"max_source_length": limit - 1, "max_target_length": limit},  # tokens: text, and with the end token
        "tokenizers": TOKENIZERS,
        "variants": {
            variant: {"graphs": {graph: f"{variant}/{graph}.onnx" for graph in GRAPHS}, "tolerance": tolerance}
            for variant, tolerance in TOLERANCES.items()
        },
        "certificate": certificate,
        "produced_by": {
            "attendant": importlib.metadata.version("attendant"),
            "torch": torch.__version__,
            "onnx": onnx.__version__,
            "onnxruntime": onnxruntime.__version__,
            "checkpoint_sha256": digest(checkpoint.find_weights(run)),
        },
    }
