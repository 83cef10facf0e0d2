"""Proof that a bundle's graphs are the torch model: every problem found, each with its worst position.

interface     names, element types and axes of every graph are those of the table
weights       every stored weight is the checkpoint's
values        log-probabilities and attention, over batches, lengths and paddings, whole and token by token
rows          a row gets the same bits alone, in a batch of any composition, and padded
decoding      greedy and beam 4 give torch's tokens on held-out inputs
certificate   its replay stays within the tolerance
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from export import certificate, signature
from export.bundle import Bundle, Variant
from export.quantize import Range
from export.runner import Array, GraphStepper, Runner, padded
from export.sample_pairs import answer_limit
from export.variants import PRECISIONS, build_variant_graph
from export.weights import arrays_of
from model.checkpoint import TrainedModel
from model.decode import decode_all, decode_sources
from model.tokenizer import BOS, EOS, PAD
from model.transformer import AttentionWeights, Transformer

BEAM = 4
SEED = 1
ROUNDING = 4  # times torch's own distance between f32 and f64 is no difference
FIRST_REAL_ID = EOS + 1
IMPOSSIBLE = -1000.0  # log-probabilities below are one and the same: classes that a bias forbids, in any rounding


def verify(bundle: Bundle, trained: TrainedModel | None, texts: list[str]) -> list[str]:
    """All that is wrong with a bundle; against torch where a model is given. `texts` are held-out sources."""
    problems: list[str] = []
    for variant in bundle.variants.values():
        try:
            plain = Runner(variant.graphs, bundle.sizes, plain=True)
            runners = {variant.name: plain}
            if "fast_step" in variant.graphs:
                runners[f"{variant.name} fast"] = plain.fast()
        except Exception as error:  # onnxruntime raises its own kinds, with no common base
            problems.append(f"{variant.name}: onnxruntime cannot load it: {error}")
            continue
        problems += [f"{variant.name} {problem}" for problem in check_interface(plain, variant.name)]
        if trained is not None:
            problems += [f"{variant.name} {problem}" for problem in check_weights(variant, trained)]
        for name, runner in runners.items():
            problems += [f"{name} {problem}" for problem in _of_runner(bundle, variant, runner, trained, texts)]
    return problems


def _of_runner(
    bundle: Bundle, variant: Variant, runner: Runner, trained: TrainedModel | None, texts: list[str]
) -> Iterator[str]:
    precision = PRECISIONS[variant.name]
    checks = {
        "rows": check_rows(runner, precision.row_distance),
        "certificate": check_certificate(bundle.certificate, runner, variant.tolerance),
    }
    if trained is not None:
        checks["decoding"] = check_decoding(runner, trained, texts, precision.differing)
        if not precision.quantized:  # random inputs are nothing that ranges were calibrated for
            checks["values"] = check_values(runner, trained, variant.tolerance)
    for name, check in checks.items():
        try:
            yield from check
        except Exception as error:  # a graph that fails to run is a problem like any other
            yield f"{name}: onnxruntime fails: {str(error).splitlines()[0]}"


def check_interface(runner: Runner, variant: str) -> Iterator[str]:
    real = PRECISIONS[variant].real
    kinds = {
        "int64": "tensor(int64)", "float32": "tensor(float)", "float16": "tensor(float16)", "int8": "tensor(int8)"
    }  # fmt: skip
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


def check_weights(variant: Variant, trained: TrainedModel) -> Iterator[str]:
    arrays = arrays_of(trained.model)
    ranges = {name: Range(**values) for name, values in variant.calibration.items()}
    seen: set[str] = set()
    for graph, path in variant.graphs.items():
        wanted = initializers(build_variant_graph(variant.name, graph, trained.config, arrays, ranges))
        stored = initializers(onnx.load(str(path)))
        for name in sorted((wanted.keys() | stored.keys()) - seen):
            seen.add(name)
            if name not in stored or name not in wanted:
                yield f"{graph}: weight {name} is {'missing' if name not in stored else 'not of the model'}"
            elif stored[name].shape != wanted[name].shape:
                yield f"{graph}: weight {name} has shape {stored[name].shape}, not {wanted[name].shape}"
            elif not np.array_equal(stored[name], wanted[name]):
                yield f"{graph}: weight {name} is not the checkpoint's: {worst(stored[name], wanted[name])}"


def check_values(runner: Runner, trained: TrainedModel, tolerance: float) -> Iterator[str]:
    limit = runner.sizes.max_length
    grid = [([1], 1), ([limit], limit), ([1, limit, 3], 2), ([5, 2, 7, 7, 1], 9), ([3] * 16, min(13, limit))]
    exact = copy.deepcopy(trained.model).double()
    for lengths, target_length in grid:
        at = f"at batch {len(lengths)}, source lengths {min(lengths)} to {max(lengths)}, target length {target_length}"
        source, source_length, target = random_inputs(runner.sizes, [min(n, limit) for n in lengths], target_length)
        expected = torch_answers(trained.model, source, target)
        allowed = max(tolerance, ROUNDING * own_rounding(exact, source, target, expected))
        found = runner.full(source, source_length, target)
        found["logprobs token by token"] = runner.stepwise(source, source_length, target)
        expected["logprobs token by token"] = expected["logprobs"]
        real = (np.arange(source.shape[1]) < source_length[:, None])[:, None, None, :, None]
        for name, value in expected.items():
            have = np.maximum(found[name], IMPOSSIBLE)
            if have.shape != value.shape:
                yield f"{name} has shape {have.shape}, not {value.shape}, {at}"
                continue
            if name == "encoder_attention":  # padded queries say nothing
                have, value = np.where(real, have, 0), np.where(real, value, 0)
            if not np.abs(have - value).max() <= allowed:
                swapped = swapped_heads(have, value) if name.endswith("attention") else ""
                yield f"{name} is off {at}: {worst(have, value)}{swapped}"


def check_rows(runner: Runner, allowed: float) -> Iterator[str]:
    """Each row of a mixed batch against the same row alone, and against it padded further."""
    sizes, limit = runner.sizes, runner.sizes.max_length
    lengths = [min(n, limit) for n in (3, 9, 1, 14, 6, 14, 2, 30)]
    source, source_length, target = random_inputs(sizes, lengths, min(7, limit))
    together = runner.stepwise(source, source_length, target)
    whole = runner.full(source, source_length, target)["logprobs"]
    for row, length in enumerate(lengths):
        for name, wide in (("alone", length), ("alone and padded", min(limit, 2 * length + 5))):
            mine = np.full((1, wide), PAD)
            mine[0, :length] = source[row, :length]
            one = (mine, source_length[row : row + 1], target[row : row + 1])
            for way, batch, single in (
                ("token by token", together, runner.stepwise(*one)),
                ("whole", whole, runner.full(*one)["logprobs"]),
            ):
                if not np.abs(batch[row] - single[0]).max() <= allowed:
                    yield (
                        f"rows: a row of {length} source tokens {name} is not what it is in a batch of "
                        f"{len(lengths)}, {way}: {worst(single[0], batch[row])}"
                    )


def check_decoding(runner: Runner, trained: TrainedModel, texts: list[str], allowed: float) -> Iterator[str]:
    sources = trained.source.encode_batch(texts)
    for beam_size in (1, BEAM):
        stepper = GraphStepper(runner)
        stepper.max_length = answer_limit(sources, stepper.max_length)
        wanted = decode_all(trained.model, sources, beam_size, max_length=stepper.max_length)
        found = decode_sources(stepper, sources, beam_size)
        wrong = [i for i in range(len(texts)) if wanted[i] != found[i]]
        if len(wrong) > allowed * len(texts):
            i = wrong[0]
            says, should = trained.target.decode(found[i]), trained.target.decode(wanted[i])
            yield (
                f"decoding with beam {beam_size} differs from torch on {len(wrong)} of {len(texts)} inputs, "
                f"first on {texts[i]!r}: {says!r}, not {should!r}"
            )


def check_certificate(held: dict[str, Any], runner: Runner, tolerance: float) -> Iterator[str]:
    found = certificate.drift(held, runner)
    if not found <= tolerance:
        yield f"certificate: log-probabilities drift by {found:.2g}, over the tolerance of {tolerance:.2g}"


def random_inputs(sizes: signature.Sizes, lengths: list[int], target_length: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(SEED)
    rows = [[*rng.integers(FIRST_REAL_ID, sizes.source_vocab, n - 1).tolist(), EOS] for n in lengths]
    source, source_length = padded(rows, PAD)
    target = rng.integers(FIRST_REAL_ID, sizes.target_vocab, (len(lengths), target_length))
    target[:, 0] = BOS
    return source, source_length, target


def own_rounding(exact: Transformer, source: Array, target: Array, found: dict[str, Array]) -> float:
    """How far torch's own f32 is from f64 on these inputs: random tokens at full length are hard on rounding."""
    return float(np.abs(torch_answers(exact, source, target)["logprobs"] - found["logprobs"]).max())


def torch_answers(model: Transformer, source: Array, target: Array) -> dict[str, Array]:
    weights = AttentionWeights()
    with torch.inference_mode():
        logits = model(torch.from_numpy(source), torch.from_numpy(target), weights)
        return {
            "logprobs": np.maximum(logits.log_softmax(-1).numpy(), IMPOSSIBLE),
            "encoder_attention": torch.stack(weights.encoder, 1).numpy(),
            "decoder_attention": torch.stack(weights.decoder, 1).numpy(),
            "cross_attention": torch.stack(weights.cross, 1).numpy(),
        }


def initializers(model: onnx.ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def worst(found: Array, expected: Array) -> str:
    """Where two arrays are furthest apart, and both values there."""
    distance = np.nan_to_num(np.abs(found.astype(np.float64) - expected), nan=np.inf)
    at = np.unravel_index(int(distance.argmax()), distance.shape)
    place = ", ".join(map(str, at))
    return f"worst at [{place}], {found[at]:.6g} and not {expected[at]:.6g}"


def swapped_heads(found: Array, expected: Array) -> str:
    """(B, layers, H, T, S): a sentence if some layer's heads are there, but in each other's place."""
    for layer in range(expected.shape[1]):
        for a, b in itertools.combinations(range(expected.shape[2]), 2):
            crossed = np.allclose(found[:, layer, a], expected[:, layer, b], atol=1e-4)
            straight = np.allclose(found[:, layer, a], expected[:, layer, a], atol=1e-4)
            if crossed and not straight and np.allclose(found[:, layer, b], expected[:, layer, a], atol=1e-4):
                return f"; heads {a} and {b} of layer {layer} are swapped"
    return ""
