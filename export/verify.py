"""Proof that a bundle's graphs are the torch model: every problem found, each with its worst position.

Every bound is in the code (export/variants.py, export/compare.py); the manifest's own may only be tighter.

facts         the manifest's sizes, special ids, limits and tokenizers are the checkpoint's
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
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from export import certificate, signature
from export.bundle import LEAST_WIDTH, Bundle, Variant
from export.compare import check_int8_values, check_values, random_inputs, worst
from export.graphs import sizes_of
from export.measure import check_measured, decode, measure
from export.quantize import Range, calibrate
from export.runner import Runner
from export.same_graphs import check_graphs
from export.samples import Ids, Samples
from export.variants import PRECISIONS
from export.weights import arrays_of
from model import tokenizer
from model.checkpoint import TrainedModel
from model.tokenizer import BOS, EOS, PAD, UNK

RANGE_SLACK = 1e-3  # of a range, by which another processor may calibrate otherwise
SEED = 1


def verify(bundle: Bundle, samples: Samples | None = None) -> list[str]:
    """All that is wrong with a bundle; against torch where the samples of its run, which hold the model, are given."""
    trained = samples.trained if samples else None
    if trained and bundle.sizes != sizes_of(trained.config):
        return [f"facts: the bundle is of {bundle.sizes}, and the checkpoint of {sizes_of(trained.config)}"]
    held = certificate.check_certificate(bundle.certificate, bundle.sizes.max_length, trained)
    problems = [f"certificate: {problem}" for problem in _guarded("its samples", held)]
    if trained:
        problems += _guarded("facts", check_facts(bundle, trained))
    for variant in bundle.variants.values():
        problems += [f"{variant.name} {problem}" for problem in _of_variant(bundle, variant, samples)]
    return problems


def _of_variant(bundle: Bundle, variant: Variant, samples: Samples | None) -> Iterator[str]:
    if variant.name not in PRECISIONS:
        yield f"is no precision that this version can verify; it knows {', '.join(PRECISIONS)}"
        return
    precision = PRECISIONS[variant.name]
    if not variant.tolerance <= precision.tolerance:
        allowed = precision.tolerance
        yield f"tolerance: the manifest allows a drift of {variant.tolerance:g}, and this version {allowed:g}"
    if samples:
        yield from _guarded("graphs", check_graphs(variant, samples.trained))
        if precision.quantized:
            yield from _guarded("calibration", check_calibration(variant, samples))
    try:
        plain = Runner(variant.graphs, bundle.sizes, plain=True)
    except Exception as error:  # onnxruntime raises its own kinds, with no common base
        yield f"onnxruntime cannot load it: {error}"
        return
    yield from check_interface(plain, variant.name)
    yield from _guarded("merge", check_merge(plain, precision.real))
    runners = {"": plain} | ({"fast ": plain.fast()} if "fast_step" in variant.graphs else {})
    for number, (name, runner) in enumerate(runners.items()):
        served = number == len(runners) - 1  # on a CPU
        for problem in _of_runner(bundle, variant, runner, samples, served):
            yield f"{name}{problem}"


def _of_runner(
    bundle: Bundle, variant: Variant, runner: Runner, samples: Samples | None, served: bool
) -> Iterator[str]:
    precision = PRECISIONS[variant.name]
    yield from _guarded("rows", check_rows(runner, precision.row_distance))
    yield from _guarded("certificate", check_drift(bundle, runner, precision.tolerance))
    if samples is None:
        return
    answers: dict[int, list[Ids]] = {}

    def check_answers() -> Iterator[str]:
        answers.update(decode(runner, samples))
        yield from check_decoding(answers, samples, precision.differing)
        if served:
            yield from check_measured(variant.measured, measure(runner, answers, samples, bundle.certificate))

    yield from _guarded("decoding", check_answers())
    model = samples.trained.model
    if precision.quantized:
        pairs = list(zip(samples.sources, answers.get(1, []), strict=False))
        int8_caches = bool(runner.kind and precision.fast_cache == "int8")
        values = check_int8_values(
            runner, variant.graphs, model, variant.calibration, int8_caches, pairs, samples.limit
        )
    else:
        values = check_values(runner, model, precision.tolerance)
    yield from _guarded("values", values)


def _guarded(name: str, check: Iterator[str]) -> Iterator[str]:
    """The problems of a check; that it cannot run is one of them."""
    try:
        yield from check
    except Exception as error:  # onnxruntime's kinds have no common base, and a bundle's content can break any check
        reason = next(iter(str(error).splitlines()), "")
        yield f"{name}: the check cannot run: {type(error).__name__}: {reason}"


def check_facts(bundle: Bundle, trained: TrainedModel) -> Iterator[str]:
    limit = trained.config.max_length
    special_ids = {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS}
    limits = {"max_source_length": limit - 1, "max_target_length": limit}
    for name, found, expected in (
        ("special_ids", bundle.special_ids, special_ids),
        ("limits", bundle.limits, limits),
    ):
        if found != expected:
            yield f"facts: {name} are {found}, and the checkpoint's {expected}"
    for side, expected_tokenizer in (("source", trained.source), ("target", trained.target)):
        if tokenizer.load(bundle.tokenizers[side]).to_str() != expected_tokenizer.to_str():
            yield f"facts: the {side} tokenizer is not the checkpoint's"


def check_interface(runner: Runner, variant: str) -> Iterator[str]:
    real = PRECISIONS[variant].real
    kinds = {"int64": "tensor(int64)", "float32": "tensor(float)", "float16": "tensor(float16)", "int8": "tensor(int8)"}
    for graph, session in runner.sessions.items():
        cache = (PRECISIONS[variant].fast_cache if graph.startswith("fast_") else "") or real
        for side, wanted, found in (
            ("input", signature.inputs(graph, runner.sizes), session.get_inputs()),
            ("output", signature.outputs(graph, runner.sizes), session.get_outputs()),
        ):
            by_name = {value.name: value for value in found}
            for name in by_name.keys() - {value.name for value in wanted}:
                yield f"{graph}: {side} {name} is not in the table"
            for value in wanted:
                if value.name not in by_name:
                    yield f"{graph}: {side} {value.name} is missing"
                    continue
                have, shape = by_name[value.name], value.shape(runner.sizes)
                kind = {"real": real, "cache": cache}.get(value.kind, value.kind)
                if have.type != kinds[kind]:
                    yield f"{graph}: {side} {value.name} holds {have.type}, not {kind}"
                for axis, (size, expected) in enumerate(zip(have.shape, shape, strict=False)):
                    if size != expected:
                        yield f"{graph}: axis {axis} of {side} {value.name} is {size}, not {expected}"
                if len(have.shape) != len(shape):
                    yield f"{graph}: {side} {value.name} has {len(have.shape)} axes, not {len(shape)}"


def check_rows(runner: Runner, allowed: float) -> Iterator[str]:
    """Each row of a mixed batch against the same row alone, and against it padded further."""
    sizes, limit = runner.sizes, runner.sizes.max_length
    lengths = [min(n, limit) for n in (3, 9, 1, 14, 6, 14, 2, 30)]
    batch = random_inputs(sizes, lengths, min(7, limit))
    together = runner.stepwise(batch.source, batch.source_length, batch.target)
    whole = runner.full(batch.source, batch.source_length, batch.target)["logprobs"]
    for row, length in enumerate(lengths):
        for name, wide in (("alone", length), ("alone and padded", min(limit, 2 * length + 5))):
            mine = np.full((1, max(LEAST_WIDTH, wide)), PAD)
            mine[0, :length] = batch.source[row, :length]
            one = (mine, batch.source_length[row : row + 1], batch.target[row : row + 1])
            for way, many, single in (
                ("token by token", together, runner.stepwise(*one)),
                ("whole", whole, runner.full(*one)["logprobs"]),
            ):
                if not np.abs(many[row] - single[0]).max() <= allowed:
                    yield (
                        f"rows: a row of {length} source tokens {name} is not what it is in a batch of "
                        f"{len(lengths)}, {way}: {worst(single[0], many[row])}"
                    )


def check_merge(runner: Runner, real: str) -> Iterator[str]:
    rng, sizes = np.random.default_rng(SEED), runner.sizes
    held = rng.normal(size=(3, sizes.heads, 5, sizes.head)).astype(real)
    added = rng.normal(size=(2, sizes.heads, 2, sizes.head)).astype(real)
    index = np.array([4, 0, 0, 3, 2])
    for length in (1, 4, 7):
        expected = np.zeros((5, sizes.heads, length, sizes.head), real)
        for row, part in enumerate([*held, *added]):
            expected[row, :, : part.shape[1]] = part[:, :length]
        feeds = {"held": held, "added": added, "index": index, "length": np.array([length])}
        found = runner.run("merge", feeds)["merged"]
        if not np.array_equal(found, expected[index]):
            yield f"merge: rows of length {length} are not those picked"


def check_calibration(variant: Variant, samples: Samples) -> Iterator[str]:
    """The manifest's ranges against those of the checkpoint's own calibration pairs."""
    trained = samples.trained
    expected = calibrate(trained.config, arrays_of(trained.model), samples.calibration)
    for name in sorted(expected.keys() ^ variant.calibration.keys()):
        yield f"calibration: {name} is {'missing' if name in expected else 'not of the model'}"
    for name in expected.keys() & variant.calibration.keys():
        claimed, found = variant.calibration[name], expected[name]
        mine, theirs = ([r.low, r.high, *r.cached] for r in (found, Range(**claimed)))
        if len(mine) != len(theirs):
            yield f"calibration: {name} has {len(theirs)} values, not {len(mine)}"
        elif not np.abs(np.subtract(mine, theirs)).max() <= RANGE_SLACK * np.abs(mine).max():
            yield f"calibration: the range of {name} is not the checkpoint's: {worst(np.array(theirs), np.array(mine))}"


def check_decoding(answers: dict[int, list[Ids]], samples: Samples, allowed: float) -> Iterator[str]:
    texts, target = samples.texts, samples.trained.target
    for beam_size, found in answers.items():
        wanted = samples.torch_answers(beam_size)
        wrong = [i for i in range(len(texts)) if wanted[i] != found[i]]
        if len(wrong) > allowed * len(texts):
            i = wrong[0]
            yield (
                f"decoding with beam {beam_size} differs from torch on {len(wrong)} of {len(texts)} inputs, "
                f"first on {texts[i]!r}: {target.decode(found[i])!r}, not {target.decode(wanted[i])!r}"
            )


def check_drift(bundle: Bundle, runner: Runner, tolerance: float) -> Iterator[str]:
    found = certificate.drift(bundle.certificate, runner)
    if not found <= tolerance:
        yield f"certificate: log-probabilities drift by {found:.2g}, over the tolerance of {tolerance:.2g}"
