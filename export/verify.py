"""Proof that a bundle's graphs are the torch model: every problem found, each with its worst position.

Every bound is in the code (export/precisions.py, export/compare.py); the manifest's own may only be tighter.

facts         the manifest's sizes, special ids, limits, tokenizers, generation and languages are the checkpoint's
tolerance     the manifest allows no more drift than this version does
interface     names, element types and axes of every graph are those of the table
rows          a row gets the same bits alone, in a batch of any composition, and padded
merge         rows of two tensors are picked, cut and padded as numpy does it
certificate   its samples can be served, are torch's own answers, and their replay stays within the tolerance
graphs        every node, attribute and weight of every graph is what this version builds from the checkpoint
calibration   the ranges are those of the checkpoint's calibration pairs
values        over batches, lengths and paddings, whole and token by token: torch's in f32 and f16, and in int8
              those of the int8 reference
decoding      greedy and beam 4 give torch's tokens on held-out inputs, but for the share that a precision may differ on
measured      the rates in the manifest are those found

Without samples of a run there is no torch model to compare with: then neither torch nor onnx is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from export import bundle_checks, replay
from export.bundle import Bundle, Variant
from export.bundle_checks import guarded
from export.precisions import PRECISIONS
from export.runner import Runner

if TYPE_CHECKING:
    from export.samples import Samples


def verify(bundle: Bundle, samples: Samples | None = None, threads: int = 0) -> list[str]:
    """All problems of a bundle; compared with torch too if the samples of its run, which hold the model, are given.

    `threads`: onnxruntime's; 0: its default.
    """
    problems: list[str] = []
    if samples:
        from export import torch_checks

        problems += torch_checks.check_sizes(bundle, samples.trained)
        if problems:
            return problems
    held = replay.check_samples(bundle.certificate, bundle.sizes.max_length)
    problems += [f"certificate: {problem}" for problem in guarded("its samples", held)]
    if samples:
        problems += torch_checks.of_bundle(bundle, samples)
    for variant in bundle.variants.values():
        problems += [f"{variant.name} {problem}" for problem in _of_variant(bundle, variant, samples, threads)]
    return problems


def _of_variant(bundle: Bundle, variant: Variant, samples: Samples | None, threads: int) -> Iterator[str]:
    if variant.name not in PRECISIONS:
        yield f"is no precision that this version can verify; it knows {', '.join(PRECISIONS)}"
        return
    precision = PRECISIONS[variant.name]
    if not variant.tolerance <= precision.tolerance:
        allowed = precision.tolerance
        yield f"tolerance: the manifest allows a drift of {variant.tolerance:g}, and this version {allowed:g}"
    if samples:
        from export import torch_checks

        yield from torch_checks.of_variant(variant, samples)
    try:
        plain = Runner(variant.graphs, bundle.sizes, plain=True, threads=threads)
    except Exception as error:  # onnxruntime raises its own kinds, with no common base
        yield f"onnxruntime cannot load it: {error}"
        return
    yield from bundle_checks.check_interface(plain, variant.name)
    yield from guarded("merge", bundle_checks.check_merge(plain, precision.dtype))
    runners = {"": plain} | ({"fast ": plain.fast()} if "fast_step" in variant.graphs else {})
    for number, (name, runner) in enumerate(runners.items()):
        served = number == len(runners) - 1  # on a CPU: fast graphs, if there are any
        for problem in _of_runner(bundle, variant, runner, samples, served):
            yield f"{name}{problem}"


def _of_runner(
    bundle: Bundle, variant: Variant, runner: Runner, samples: Samples | None, served: bool
) -> Iterator[str]:
    precision = PRECISIONS[variant.name]
    yield from guarded("rows", bundle_checks.check_rows(runner, precision.row_distance))
    yield from guarded("certificate", bundle_checks.check_drift(bundle, runner, precision.tolerance))
    if samples:
        from export import torch_checks

        yield from torch_checks.of_runner(bundle, variant, runner, samples, served)
