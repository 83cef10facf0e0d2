"""Checks of a bundle against the checkpoint that it was made of: torch and onnx are needed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from export.bundle import Bundle, Variant
from export.bundle_checks import guarded
from export.calibration import Range, observe
from export.certificate import check_answers
from export.compare import check_int8_values, check_values
from export.graphs import sizes_of
from export.inputs import worst
from export.measure import check_measured, decode, measure
from export.precisions import PRECISIONS
from export.runner import Runner
from export.same_graphs import check_graphs
from export.samples import DEFAULTS, Ids, Samples
from export.weights import arrays_of
from model import tokenizer
from model.checkpoint import TrainedModel
from model.tokenizer import BOS, EOS, PAD, UNK

RANGE_SLACK = 1e-3  # relative difference that calibration on another processor may have


def of_bundle(bundle: Bundle, samples: Samples) -> Iterator[str]:
    answers = guarded("its samples", check_answers(bundle.certificate, samples.trained))
    yield from (f"certificate: {problem}" for problem in answers)
    yield from guarded("facts", check_facts(bundle, samples.trained))
    yield from guarded("facts", check_defaults(bundle, samples))


def of_variant(variant: Variant, samples: Samples) -> Iterator[str]:
    yield from guarded("graphs", check_graphs(variant, samples.trained))
    if PRECISIONS[variant.name].quantized:
        yield from guarded("calibration", check_calibration(variant, samples))


def of_runner(bundle: Bundle, variant: Variant, runner: Runner, samples: Samples, served: bool) -> Iterator[str]:
    precision = PRECISIONS[variant.name]
    answers: dict[int, list[Ids]] = {}

    def check_decoded() -> Iterator[str]:
        answers.update(decode(runner, samples))
        yield from check_decoding(answers, samples, precision.differing)
        if served:
            yield from check_measured(variant.measured, measure(runner, answers, samples, bundle.certificate))

    yield from guarded("decoding", check_decoded())
    model = samples.trained.model
    if precision.quantized:
        pairs = list(zip(samples.sources, answers.get(1, []), strict=False))
        int8_caches = bool(runner.kind and precision.fast_cache == "int8")
        start = samples.trained.start
        values = check_int8_values(
            runner, variant.graphs, model, variant.calibration, int8_caches, pairs, samples.limit, start
        )
    else:
        values = check_values(runner, model, precision.tolerance)
    yield from guarded("values", values)


def check_sizes(bundle: Bundle, trained: TrainedModel) -> Iterator[str]:
    if bundle.sizes != sizes_of(trained.config):
        yield f"facts: the bundle is of {bundle.sizes}, and the checkpoint of {sizes_of(trained.config)}"


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


def check_defaults(bundle: Bundle, samples: Samples) -> Iterator[str]:
    """An imported model's defaults of a request and its languages, against those that its run holds."""
    for name in DEFAULTS:
        found, expected = getattr(bundle, name), samples.defaults.get(name, {})
        if found != expected:
            yield f"facts: {name} is {found}, and the checkpoint's {expected}"


def check_calibration(variant: Variant, samples: Samples) -> Iterator[str]:
    """The manifest's ranges against those that the checkpoint's own calibration pairs may give."""
    trained = samples.trained
    expected = observe(trained.config, arrays_of(trained.model), samples.calibration, trained.start)
    for name in sorted(expected.keys() ^ variant.calibration.keys()):
        yield f"calibration: {name} is {'missing' if name in expected else 'not of the model'}"
    for name in expected.keys() & variant.calibration.keys():
        theirs = _numbers(Range(**variant.calibration[name]))
        choices = [_numbers(choice) for choice in expected[name].choices()]
        if len(theirs) != len(choices[0]):
            yield f"calibration: {name} has {len(theirs)} values, not {len(choices[0])}"
        elif not any(np.abs(mine - theirs).max() <= RANGE_SLACK * np.abs(mine).max() for mine in choices):
            yield f"calibration: the range of {name} is not the checkpoint's: {worst(theirs, choices[0])}"


def _numbers(of: Range) -> np.ndarray:
    return np.array([of.low, of.high, *of.cached])


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
