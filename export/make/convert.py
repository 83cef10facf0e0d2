"""From a checkpoint to a bundle: graphs, tokenizers, certificate; verified against torch before it is kept."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

from attendant.common.version import VERSION
from attendant.export.bundle import Bundle, BundleError, digest, read_bundle, write_bundle
from attendant.export.graphs.builder import Array, WeightStore
from attendant.export.graphs.graphs import sizes_of
from attendant.export.graphs.variants import build_variant_graph, graphs_of
from attendant.export.graphs.weights import arrays_of
from attendant.export.make.alignment import choose_alignment
from attendant.export.make.certificate import make_certificate, own_rounding
from attendant.export.make.measure import decode, measure
from attendant.export.make.samples import imported_defaults, read_samples
from attendant.export.precisions import DEFAULT, PRECISIONS
from attendant.export.runner import Runner
from attendant.export.verify.rounding import drift_tolerance
from attendant.export.verify.verify import verify
from attendant.model import checkpoint
from attendant.model.checkpoint import TrainedModel
from attendant.model.config import ModelConfig
from attendant.model.text.tokenizer import BOS, EOS, PAD, UNK
from attendant.model.threads import torch_threads

__all__ = ["convert", "describe", "describe_variants", "write_graphs"]

WEIGHTS = "weights.bin"
TOKENIZERS = {"source": "tokenizers/source.json", "target": "tokenizers/target.json"}


class VerificationError(BundleError):
    """The graphs are not the model; every problem is in the message."""


def convert(
    run: Path,
    out: Path,
    name: str,
    variants: Sequence[str] = DEFAULT,
    force: bool = False,
    given: Path | None = None,
    threads: int | None = None,
    required: Sequence[str] = (),
    warn: Callable[[list[str]], None] = lambda _: None,
) -> Bundle:
    """Write a bundle of a trained run, if it proves to be the same model.

    Where int8 alone does not, it is left out, and `warn` gets its problems; unless it is required, or all there is.
    `threads` of torch and onnxruntime; 0: torch's is measured, onnxruntime's its default; None: as they are set.
    """
    trained = checkpoint.load_trained(run)
    arrays = arrays_of(trained.model)
    for weight, values in arrays.items():
        if not np.isfinite(values).all():
            raise BundleError(f"{run}: the weight {weight} holds NaN or infinity; train the model again.")

    def fill(directory: Path) -> dict[str, Any]:
        (directory / "tokenizers").mkdir()
        shutil.copyfile(run / checkpoint.SOURCE_TOKENIZER, directory / TOKENIZERS["source"])
        shutil.copyfile(run / checkpoint.TARGET_TOKENIZER, directory / TOKENIZERS["target"])
        certificate = make_certificate(trained, samples.texts)
        described = describe_variants(variants, trained.config, own_rounding(certificate, trained))
        for variant in variants:
            write_graphs(variant, trained.config, arrays, directory / variant)
            graphs = {graph: directory / path for graph, path in described[variant]["graphs"].items()}
            runner = Runner(graphs, sizes_of(trained.config), threads=threads or 0)
            described[variant]["measured"] = measure(runner, decode(runner, samples), samples, certificate)
        alignment = choose_alignment(trained.model, samples.pairs, trained.start)
        manifest = describe(run, trained, name, certificate, described, alignment)
        return manifest | ({"examples": []} if samples.invented else {})

    def prove(bundle: Bundle) -> list[str]:
        """The variants to leave out; VerificationError if there must be none."""
        problems = verify(bundle, samples, threads or 0)
        if not problems:
            return []
        said = [*problems, *advice(problems)]
        if not _only_int8(problems) or "int8" in required or len(bundle.variants) == 1:
            raise VerificationError("\n".join(["the exported graphs are not the model, so nothing is written:", *said]))
        warn(said)
        return ["int8"]

    with torch_threads(threads, lambda: _forward(trained)):
        samples = read_samples(run, trained, given)
        write_bundle(out, fill, prove, force)
    return read_bundle(out)


def _forward(trained: TrainedModel) -> None:
    """What the number of threads is measured on: the model's answer to some sources of moderate length."""
    length = min(16, trained.config.max_length)
    ids = torch.full((16, length), EOS + 1)
    with torch.inference_mode():
        trained.model(ids.clamp(max=trained.config.source_vocab - 1), ids.clamp(max=trained.config.target_vocab - 1))


def _only_int8(problems: list[str]) -> bool:
    return all(problem.startswith("int8 ") for problem in problems)


def advice(problems: list[str]) -> list[str]:
    """What to do if only int8 has problems."""
    if not _only_int8(problems):
        return []
    return ["Only int8 is off: --precision fp32 writes the f32 variant alone."]


def write_graphs(variant: str, config: ModelConfig, arrays: dict[str, Array], directory: Path) -> None:
    directory.mkdir()
    store = WeightStore()
    graphs = graphs_of(variant, config)
    for graph in graphs:
        model = build_variant_graph(variant, graph, config, arrays, store, WEIGHTS)
        (directory / f"{graph}.onnx").write_bytes(model.SerializeToString(deterministic=True))
    store.write(directory / WEIGHTS)
    for graph in graphs:
        onnx.checker.check_model(str(directory / f"{graph}.onnx"), full_check=True)


def describe_variants(variants: Sequence[str], config: ModelConfig, rounding: float = 0.0) -> dict[str, Any]:
    """`rounding`: torch's own, along the certificate's answers; it widens the tolerance."""
    return {
        variant: {
            "graphs": {graph: f"{variant}/{graph}.onnx" for graph in graphs_of(variant, config)},
            "tolerance": float(f"{drift_tolerance(PRECISIONS[variant], rounding):.3g}"),
        }
        for variant in variants
    }


def describe(
    run: Path,
    trained: TrainedModel,
    name: str,
    certificate: dict[str, Any],
    variants: dict[str, Any],
    alignment: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The manifest, but for its format and files."""
    limit = trained.config.max_length
    return {
        "name": name,
        "sizes": dataclasses.asdict(sizes_of(trained.config)),
        "special_ids": {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS},
        "limits": {"max_source_length": limit - 1, "max_target_length": limit},  # tokens without / with the end token
        "tokenizers": TOKENIZERS,
        "variants": variants,
        "certificate": certificate,
        **imported_defaults(run),
        **({"alignment": alignment} if alignment else {}),
        "produced_by": {
            "attendant": VERSION,
            "torch": torch.__version__,
            "onnx": onnx.__version__,
            "onnxruntime": onnxruntime.__version__,
            "checkpoint_sha256": digest(checkpoint.find_weights(run)),
        },
    }
