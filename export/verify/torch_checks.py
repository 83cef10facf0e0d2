"""Checks of a bundle against the checkpoint that it was made of: torch and onnx are needed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from attendant.export.bundle import Bundle, Variant, digest
from attendant.export.graphs.graphs import sizes_of
from attendant.export.make.alignment import agreement, best_alignment, fitting_pairs, reference_pairs
from attendant.export.make.budget import INPUTS, PAIRS, SEARCHED, SEARCHED_TOKENS
from attendant.export.make.certificate import FEWEST_TOKENS, check_answers, most_tokens, search_again
from attendant.export.make.measure import check_measured, decode, measure
from attendant.export.make.samples import DEFAULTS, Ids, Samples
from attendant.export.precisions import PRECISIONS
from attendant.export.runner import DEFINITIONS, KERNELS, Runner
from attendant.export.verify.bundle_checks import guarded
from attendant.export.verify.compare import check_int8_values, check_values
from attendant.export.verify.compiled import check_compiled
from attendant.export.verify.inputs import quoted
from attendant.export.verify.same_graphs import check_graphs
from attendant.model.checkpoint import TrainedModel, find_weights
from attendant.model.text import tokenizer
from attendant.model.text.tokenizer import BOS, EOS, PAD, UNK

AGREEMENT_SLACK = 0.01  # of 1: what rounding on another processor may change
FEW = 64  # held-out inputs


def of_bundle(bundle: Bundle, samples: Samples) -> Iterator[str]:
    answers = guarded("its samples", check_answers(bundle.certificate, samples.trained))
    yield from (f"certificate: {problem}" for problem in answers)
    again = guarded("its samples", check_searched(bundle, samples))
    yield from (f"certificate: {problem}" for problem in again)
    yield from guarded("facts", check_facts(bundle, samples.trained))
    yield from guarded("facts", check_defaults(bundle, samples))
    yield from guarded("facts", check_origin(bundle, samples))
    yield from guarded("alignment", check_alignment(bundle, samples))


def of_variant(variant: Variant, samples: Samples) -> Iterator[str]:
    yield from guarded("graphs", check_graphs(variant, samples.trained))


def of_runner(bundle: Bundle, variant: Variant, runner: Runner, samples: Samples, served: bool) -> Iterator[str]:
    precision = PRECISIONS[variant.name]
    answers: dict[int, list[Ids]] = {}
    if runner.way == DEFINITIONS:  # they are not served
        samples = samples.first(FEW)

    def check_decoded() -> Iterator[str]:
        answers.update(decode(runner, samples))
        unlike_texts = precision.quantized and samples.invented  # what int8 does to texts they do not say
        yield from check_decoding(answers, samples, 1.0 if unlike_texts else precision.differing)
        if served:
            yield from check_measured(variant.measured, measure(runner, answers, samples, bundle.certificate))

    yield from guarded("decoding", check_decoded())
    yield from guarded("values", _values(variant, runner, samples, answers.get(1, [])))


def _values(variant: Variant, runner: Runner, samples: Samples, answers: list[Ids]) -> Iterator[str]:
    """Against torch; int8 against its reference, and compiled int8 operators against their definitions."""
    precision, trained = PRECISIONS[variant.name], samples.trained
    if not precision.quantized:
        yield from check_values(runner, trained.model, precision.tolerance)
    elif runner.way == KERNELS:
        yield from check_compiled(variant.graphs, runner.sizes)
    else:
        pairs = list(zip(samples.sources, answers, strict=False))
        yield from check_int8_values(runner, variant.graphs, trained.model, pairs, samples.limit, trained.start)


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
            yield f"facts: {name} is {quoted(str(found))}, and the checkpoint's {quoted(str(expected))}"


def check_origin(bundle: Bundle, samples: Samples) -> Iterator[str]:
    """The checkpoint is the very one that the bundle was made of, and its examples are texts that it reads."""
    if samples.run is not None:
        found, expected = bundle.produced_by.get("checkpoint_sha256", ""), digest(find_weights(samples.run))
        if found != expected:
            yield f"facts: checkpoint_sha256 is {found:.12}..., and the checkpoint's {expected:.12}..."
    if bundle.examples is None and samples.invented:
        yield "facts: there are examples, and the samples are random tokens"
    for example in bundle.examples or ():
        if UNK in samples.trained.source.encode(example):
            yield f"facts: the example {quoted(example)} has what the model's vocabulary lacks"


def check_searched(bundle: Bundle, samples: Samples) -> Iterator[str]:
    """The certificate's answers against the slow reference search: as many as the export says, one at least."""
    if not samples.searched_again:
        count = max(1, looked_at(bundle, SEARCHED, len(bundle.certificate["samples"])))
        limit = most_tokens(samples.trained)
        tokens = max(FEWEST_TOKENS, looked_at(bundle, SEARCHED_TOKENS, limit))
        found = itertools.islice(search_again(bundle.certificate, samples.trained, tokens), count)
        yield from (problem for problem in found if problem)


def looked_at(bundle: Bundle, what: str, whole: int) -> int:
    """How many of something the export looked at: fewer than all where its seconds were over."""
    told = bundle.certificate.get("looked_at")
    found = told.get(what) if isinstance(told, dict) else None
    return min(found[0], whole) if isinstance(found, list) and found and isinstance(found[0], int) else whole


def held_out(bundle: Bundle, samples: Samples) -> Samples:
    """The inputs that the export compared answers on."""
    count = max(1, looked_at(bundle, INPUTS, len(samples.texts)))
    return samples if count == len(samples.texts) else samples.first(count)


def check_alignment(bundle: Bundle, samples: Samples) -> Iterator[str]:
    """The claimed heads agree with the model as much as the manifest says, and nearly as much as the best do."""
    model, claimed = samples.trained.model, bundle.alignment
    references, start = samples.references_found, samples.trained.start
    if not references:
        fitting = fitting_pairs(model, samples.pairs, start)
        references = reference_pairs(model, fitting, start, looked_at(bundle, PAIRS, len(fitting)))
    best = best_alignment(model, references)
    if bool(best) != bool(claimed):
        yield f"alignment: the manifest has {'none' if best else 'one'}, and the checkpoint {'one' if best else 'none'}"
    elif claimed:
        found = agreement(references, claimed["layer"], claimed["heads"])
        if abs(found - claimed["agreement"]) > AGREEMENT_SLACK or found < best["agreement"] - AGREEMENT_SLACK:
            yield (
                f"alignment: heads {claimed['heads']} of layer {claimed['layer']} agree by {found:.4f}, the manifest "
                f"says {claimed['agreement']:.4f}, and the best of all {best['agreement']:.4f}"
            )


def check_decoding(answers: dict[int, list[Ids]], samples: Samples, allowed: float) -> Iterator[str]:
    texts, target = samples.texts, samples.trained.target
    for beam_size, found in answers.items():
        wanted = samples.torch_answers(beam_size)
        wrong = [i for i in range(len(texts)) if wanted[i] != found[i]]
        if len(wrong) > allowed * len(texts):
            i = wrong[0]
            pairs = zip(found[i], wanted[i], strict=False)
            same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            ours, theirs = (quoted(target.decode(ids[same:])) for ids in (found[i], wanted[i]))
            yield (
                f"decoding with beam {beam_size} differs from torch on {len(wrong)} of {len(texts)} inputs, "
                f"first on {quoted(texts[i])}, after {same} tokens: {ours}, not {theirs}"
            )
