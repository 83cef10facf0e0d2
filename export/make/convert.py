"""From a checkpoint to a bundle: graphs, tokenizers, certificate; verified against torch before it is kept."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch

from attendant.common.stages import Stages
from attendant.common.version import VERSION
from attendant.export.bundle import Bundle, BundleError, digest, read_bundle, write_bundle
from attendant.export.graphs.builder import Array, WeightStore
from attendant.export.graphs.graphs import sizes_of
from attendant.export.graphs.variants import build_variant_graph, graphs_of
from attendant.export.graphs.weights import arrays_of
from attendant.export.make.alignment import best_alignment, fitting_pairs, reference_pairs
from attendant.export.make.balance import load_balanced
from attendant.export.make.budget import (
    ALIGNMENT,
    HELD_OUT,
    INPUTS,
    PAIRS,
    SEARCH,
    SEARCHED,
    SEARCHED_TOKENS,
    SECONDS,
    Budget,
    Clock,
)
from attendant.export.make.certificate import make_certificate, most_tokens, own_rounding, search_again, tokens_in
from attendant.export.make.measure import BEAM, decode, measure
from attendant.export.make.memory import check_memory
from attendant.export.make.samples import Samples, imported_defaults, read_samples
from attendant.export.precisions import DEFAULT, PRECISIONS
from attendant.export.runner import DEFINITIONS, KERNELS, PLAIN, Runner, give_back
from attendant.export.verify.rounding import drift_tolerance
from attendant.export.verify.verify import verify
from attendant.model import checkpoint
from attendant.model.checkpoint import TrainedModel
from attendant.model.config import ModelConfig
from attendant.model.text.tokenizer import BOS, EOS, PAD, UNK
from attendant.model.threads import torch_threads

__all__ = ["convert", "describe", "describe_variants", "write_graphs"]

AT_ONCE = 2**12  # rows of a weight that are looked at together
FEWEST = 16  # held-out inputs that are compared in any case
BEAM_COST, WAYS = 4.0, 1.5  # what both searches cost in greedy ones, and what a variant's ways cost in torch's
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
    seconds: float = SECONDS,
    shows: bool = False,
    about: dict[str, Any] | None = None,
) -> Bundle:
    """Write a bundle of a trained run, if it proves to be the same model.

    Where int8 alone does not, it is left out, and `warn` gets its problems; unless it is required, or all there is.
    `about`: fields of the manifest that are the user's to write, `description` and `examples`.
    `threads` of torch and onnxruntime; 0: torch's is measured, onnxruntime's its default; None: as they are set.
    `seconds`: for what takes hours with a large model; `shows` progress.
    """
    stages, budget = Stages("export", stage_costs(variants), shows), Budget(seconds)

    def begin(stage: str) -> None:
        give_back()
        stages.begin(stage)

    begin("reading the run")
    need = check_memory(sizes_of(checkpoint.read_model_config(run)))
    if shows:
        print(f"export: it will hold up to {need / 1e6:,.0f} MB of memory", flush=True)
    trained = load_balanced(run)
    check_finite(run, trained)
    sizes = sizes_of(trained.config)

    def fill(directory: Path) -> dict[str, Any]:
        (directory / "tokenizers").mkdir()
        shutil.copyfile(run / checkpoint.SOURCE_TOKENIZER, directory / TOKENIZERS["source"])
        shutil.copyfile(run / checkpoint.TARGET_TOKENIZER, directory / TOKENIZERS["target"])
        begin("answers by torch, and the certificate")
        certificate = certified(samples, budget)
        rounding = own_rounding(certificate, trained)
        described = describe_variants(variants, trained.config, rounding)
        begin("the alignment")
        alignment = aligned(samples, budget)
        if budget.looked_at:
            certificate["looked_at"] = budget.looked_at
        for variant in variants:
            begin(f"{variant}: graphs")
            write_graphs(variant, trained.config, arrays_of(trained.model), directory / variant)
            begin(f"{variant}: answers")
            graphs = {graph: directory / path for graph, path in described[variant]["graphs"].items()}
            runner = Runner(graphs, sizes, threads=threads or 0)
            measured = measure(runner, decode(runner, samples), samples, certificate)
            described[variant] |= {"tolerance": tolerated(variant, rounding, measured["drift"]), "measured": measured}
            runner.let_go()
        manifest = describe(run, trained, name, certificate, described, alignment)
        return manifest | ({"examples": []} if samples.invented else {}) | (about or {})

    def prove(bundle: Bundle) -> list[str]:
        """The variants to leave out; VerificationError if there must be none."""
        problems = verify(bundle, samples, threads or 0, begin)
        if not problems:
            return []
        said = [*problems, *advice(problems)]
        if not _only_int8(problems) or "int8" in required or len(bundle.variants) == 1:
            raise VerificationError("\n".join(["the exported graphs are not the model, so nothing is written:", *said]))
        warn(said)
        return ["int8"]

    with torch_threads(threads, lambda: _forward(trained)):
        samples = affordable(read_samples(run, trained, given), len(variants), budget)
        write_bundle(out, fill, prove, force)
    return read_bundle(out)


def check_finite(run: Path, trained: TrainedModel) -> None:
    for weight, values in checkpoint.weights_of(trained.model).items():
        if not all(part.isfinite().all() for part in values.split(AT_ONCE)):
            raise BundleError(f"{run}: the weight {weight} holds NaN or infinity; train the model again.")


def stage_costs(variants: Sequence[str]) -> dict[str, float]:
    """The stages of an export, with what each takes of a base model, in seconds of two cores."""
    return {
        "reading the run": 4,
        "answers by torch, and the certificate": 25,
        "the alignment": 12,
        **{f"{variant}: {part}": cost for variant in variants for part, cost in (("graphs", 3), ("answers", 8))},
        **{
            f"{variant}: proof of {part}": cost
            for variant in variants
            for part, cost in (("its weights", 3), (PLAIN, 18), (DEFINITIONS, 12), (KERNELS, 3))
        },
    }


def affordable(samples: Samples, variants: int, budget: Budget) -> Samples:
    """As many held-out inputs as can be decoded in time, by torch and by each variant in its ways to run."""
    clock, some = Clock(), samples.first(samples.rows)
    some.torch_answers(1)
    each = clock.seconds() / len(some.texts) * BEAM_COST * (1 + WAYS * variants)
    count = max(FEWEST, int(HELD_OUT * budget.seconds / max(each, 1e-9)))
    budget.note(INPUTS, count, len(samples.texts))
    return samples.first(count) if count < len(samples.texts) else samples


def certified(samples: Samples, budget: Budget) -> dict[str, Any]:
    """The certificate, its answers searched again as far as the time goes; VerificationError if one is not the best."""
    certificate = make_certificate(samples.trained, samples.texts)
    seconds = SEARCH * budget.seconds
    tokens = tokens_in(seconds, samples.trained, certificate["samples"][0]["source_ids"])
    found = list(search_again(certificate, samples.trained, tokens, seconds))
    if problems := [problem for problem in found if problem]:
        raise VerificationError("\n".join(["the searches in torch differ, so nothing is written:", *problems]))
    samples.searched_again = True
    for beam_size in (1, BEAM):
        samples.torch_answers(beam_size)
    budget.note(SEARCHED, len(found), len(certificate["samples"]))
    budget.note(SEARCHED_TOKENS, tokens, most_tokens(samples.trained))
    return certificate


def aligned(samples: Samples, budget: Budget) -> dict[str, Any]:
    """The manifest's `alignment`, from as many pairs as the time is enough for; {} if there is no dependence at all."""
    model, start = samples.trained.model, samples.trained.start
    pairs = fitting_pairs(model, samples.pairs, start)
    samples.references_found = reference_pairs(model, pairs, start, seconds=ALIGNMENT * budget.seconds)
    budget.note(PAIRS, len(samples.references_found), len(pairs))
    return best_alignment(model, samples.references_found)


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
            "tolerance": tolerated(variant, rounding),
        }
        for variant in variants
    }


def tolerated(variant: str, rounding: float, measured: float = 0.0) -> float:
    return float(f"{drift_tolerance(PRECISIONS[variant], rounding, measured):.3g}")


def written_sizes(config: ModelConfig) -> dict[str, Any]:
    """`sizes`, and `head_size` where d_model and heads do not say it."""
    sizes = dataclasses.asdict(sizes_of(config))
    head_size = sizes.pop("head_size")
    return {"sizes": sizes, **({"head_size": head_size} if head_size else {})}


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
        **written_sizes(trained.config),
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
