"""Proof that a bundle's graphs are the torch model: every problem found, each with its worst position.

Every bound is in the code (export/precisions.py, export/verify/rounding.py, export/verify/compare.py); the manifest's
own tolerance may only be tighter.

name          the model has one; checkpoint_sha256 is a digest, and the checkpoint's
facts         the manifest's sizes, special ids, limits, tokenizers, generation and languages are the checkpoint's
alignment     its layer and heads are there, and agree with the model's dependences as the manifest says
tolerance     the manifest allows no more drift than this version does
interface     names, element types and axes of every graph are those of the table
rows          a row gets the same bits alone, in a batch of any composition, and padded
merge         rows of two tensors are picked, cut and padded as numpy does it
certificate   its samples can be served, are torch's own answers, and their replay stays within the tolerance
graphs        every node, attribute and weight of every graph is what this version builds from the checkpoint
values        over batches, lengths and paddings, whole and token by token: torch's in f32 and f16, and in int8
              those of the int8 reference; compiled operators compute what their definitions do
decoding      greedy and beam 4 give torch's tokens on held-out inputs, but for the share that a precision may differ on
measured      the rates in the manifest are those found

Without samples of a run there is no torch model to compare with: then neither torch nor onnx is imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from attendant.export.bundle import Bundle, Variant
from attendant.export.precisions import PRECISIONS
from attendant.export.runner import DEFINITIONS, KERNELS, PLAIN, Runner, ways_to_run
from attendant.export.verify import bundle_checks, manifest_checks, replay
from attendant.export.verify.bundle_checks import guarded
from attendant.export.verify.rounding import drift_tolerance

if TYPE_CHECKING:
    from attendant.export.make.samples import Samples

PROCESSORS = 4  # torch may round the same values by this many times more on the processor of the export than here


def verify(
    bundle: Bundle,
    samples: Samples | None = None,
    threads: int = 0,
    begin: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """All problems of a bundle; compared with torch too if the samples of its run, which hold the model, are given.

    `threads`: onnxruntime's; 0: its default. `begin` gets the name of each stage of a variant.
    """
    problems: list[str] = []
    if samples:
        from attendant.export.verify import torch_checks

        problems += torch_checks.check_sizes(bundle, samples.trained)
        if problems:
            return problems
    problems += guarded("manifest", manifest_checks.check_manifest(bundle))
    held = replay.check_samples(bundle.certificate, bundle.sizes.max_length)
    problems += [f"certificate: {problem}" for problem in guarded("its samples", held)]
    if samples:
        samples = torch_checks.held_out(bundle, samples)
        problems += torch_checks.of_bundle(bundle, samples)
    for variant in bundle.variants.values():
        problems += [f"{variant.name} {problem}" for problem in _of_variant(bundle, variant, samples, threads, begin)]
    return problems


def _of_variant(
    bundle: Bundle, variant: Variant, samples: Samples | None, threads: int, begin: Callable[[str], None]
) -> Iterator[str]:
    if variant.name not in PRECISIONS:
        yield f"is no precision that this version can verify; it knows {', '.join(PRECISIONS)}"
        return
    precision = PRECISIONS[variant.name]
    begin(f"{variant.name}: proof of its weights")
    too_loose = list(guarded("tolerance", check_tolerance(bundle, variant, samples)))
    yield from too_loose
    yield from guarded("measured", manifest_checks.check_measured_values(variant))
    tolerance = precision.tolerance if too_loose else variant.tolerance
    if samples:
        from attendant.export.verify import torch_checks

        yield from torch_checks.of_variant(variant, samples)
    ways = ways_to_run(variant.graphs)
    served = ways[-1] if KERNELS in ways else PLAIN
    for way in ways:
        begin(f"{variant.name}: proof of {way}")
        prefix = {PLAIN: "", DEFINITIONS: "definitions: ", KERNELS: "kernels: "}[way]
        try:
            runner = Runner(variant.graphs, bundle.sizes, way, threads)
            interface = list(bundle_checks.check_interface(runner, variant.name))
        except Exception as error:  # onnxruntime raises its own kinds, with no common base
            yield f"{prefix}onnxruntime cannot load it: {error}"
            continue
        for problem in (*interface, *_of_runner(bundle, variant, runner, samples, tolerance, way == served)):
            yield f"{prefix}{problem}"


def check_tolerance(bundle: Bundle, variant: Variant, samples: Samples | None = None) -> Iterator[str]:
    """The manifest's tolerance: more than the precision's only by torch's own rounding, up to its cap without torch.

    int8's follows the drift that was measured.
    """
    precision = PRECISIONS[variant.name]
    allowed = precision.tolerance
    if variant.tolerance > allowed:
        rounding = math.inf
        if samples:
            from attendant.export.make.certificate import own_rounding

            rounding = PROCESSORS * own_rounding(bundle.certificate, samples.trained)
        allowed = drift_tolerance(precision, rounding, variant.measured.get("drift", 0.0))
    if not variant.tolerance <= allowed:
        yield f"tolerance: the manifest allows a drift of {variant.tolerance:g}, and this version {allowed:.3g}"


def _of_runner(
    bundle: Bundle, variant: Variant, runner: Runner, samples: Samples | None, tolerance: float, served: bool
) -> Iterator[str]:
    precision = PRECISIONS[variant.name]
    if runner.way == PLAIN:
        yield from guarded("merge", bundle_checks.check_merge(runner, precision.dtype))
    yield from guarded("rows", bundle_checks.check_rows(runner, precision.row_distance))
    yield from guarded("certificate", bundle_checks.check_drift(bundle, runner, tolerance))
    if samples:
        from attendant.export.verify import torch_checks

        yield from torch_checks.of_runner(bundle, variant, runner, samples, served)
