"""From a checkpoint to a bundle: graphs, tokenizers, certificate, and the proof before it gets its name."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch

from export.builder import Array, WeightStore
from export.bundle import Bundle, BundleError, digest, read_bundle, write_bundle
from export.certificate import make_certificate
from export.graphs import sizes_of
from export.quantize import CALIBRATION_PAIRS, Range, calibrate
from export.variants import DEFAULT, PRECISIONS, build_variant_graph, graphs_of
from export.verify import verify
from export.weights import arrays_of
from model import checkpoint
from model.checkpoint import TrainedModel
from model.config import ModelConfig
from model.data import read_pairs, read_references
from model.tokenizer import BOS, EOS, PAD, UNK

WEIGHTS = "weights.bin"
HELD_OUT = 1000  # sources that must decode to torch's tokens
TOKENIZERS = {"source": "tokenizers/source.json", "target": "tokenizers/target.json"}


class VerificationError(BundleError):
    """The graphs are not the model; every problem is in the message."""


def convert(run: Path, out: Path, name: str, variants: Sequence[str] = DEFAULT, force: bool = False) -> Bundle:
    """Write a bundle of a trained run, if it proves to be the same model."""
    trained = checkpoint.load_trained(run)
    texts = held_out_sources(run, trained)

    def fill(directory: Path) -> dict[str, Any]:
        (directory / "tokenizers").mkdir()
        shutil.copyfile(run / checkpoint.SOURCE_TOKENIZER, directory / TOKENIZERS["source"])
        shutil.copyfile(run / checkpoint.TARGET_TOKENIZER, directory / TOKENIZERS["target"])
        arrays = arrays_of(trained.model)
        ranges = calibrate(trained.config, arrays, calibration_pairs(run, trained))
        for variant in variants:
            write_graphs(variant, trained.config, arrays, ranges, directory / variant)
        return describe(
            run, trained, name, make_certificate(trained, texts), describe_variants(variants, trained.config, ranges)
        )

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


def calibration_pairs(run: Path, trained: TrainedModel) -> list[tuple[list[int], list[int]]]:
    """Evenly spaced samples of the run, as ids, that fit the model."""
    pairs = list(read_pairs(run / checkpoint.SAMPLES))
    chosen = pairs[:: max(1, len(pairs) // CALIBRATION_PAIRS)]
    encoded = [(trained.source.encode(source), trained.target.encode(target)) for source, target in chosen]
    return [(source, target) for source, target in encoded if max(len(source), len(target)) < trained.config.max_length]


def write_graphs(
    variant: str, config: ModelConfig, arrays: dict[str, Array], ranges: dict[str, Range], directory: Path
) -> None:
    directory.mkdir()
    store = WeightStore()
    graphs = graphs_of(variant, config)
    for graph in graphs:
        model = build_variant_graph(variant, graph, config, arrays, ranges, store, WEIGHTS)
        (directory / f"{graph}.onnx").write_bytes(model.SerializeToString(deterministic=True))
    store.write(directory / WEIGHTS)
    for graph in graphs:
        onnx.checker.check_model(str(directory / f"{graph}.onnx"), full_check=True)


def describe_variants(variants: Sequence[str], config: ModelConfig, ranges: dict[str, Range]) -> dict[str, Any]:
    calibration = {name: dataclasses.asdict(values) for name, values in ranges.items()}
    return {
        variant: {
            "graphs": {graph: f"{variant}/{graph}.onnx" for graph in graphs_of(variant, config)},
            "tolerance": PRECISIONS[variant].tolerance,
            "calibration": calibration if PRECISIONS[variant].quantized else {},
        }
        for variant in variants
    }


def describe(
    run: Path, trained: TrainedModel, name: str, certificate: dict[str, Any], variants: dict[str, Any]
) -> dict[str, Any]:
    """The manifest, but for its format and files."""
    limit = trained.config.max_length
    return {
        "name": name,
        "sizes": dataclasses.asdict(sizes_of(trained.config)),
        "special_ids": {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS},
        "limits": {"max_source_length": limit - 1, "max_target_length": limit},  # tokens: text, and with the end token
        "tokenizers": TOKENIZERS,
        "variants": variants,
        "certificate": certificate,
        "produced_by": {
            "attendant": importlib.metadata.version("attendant"),
            "torch": torch.__version__,
            "onnx": onnx.__version__,
            "onnxruntime": onnxruntime.__version__,
            "checkpoint_sha256": digest(checkpoint.find_weights(run)),
        },
    }
