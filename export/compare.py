"""Values of a variant's graphs against torch's, over a grid of batches, lengths and paddings.

f32 and f16 are compared with the torch model itself, int8 with its own reference (export/int8_reference.py).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from export.inputs import Inputs, grid, worst
from export.int8_reference import Calibration, follow, int8_reference
from export.int8_trace import TracingRunner
from export.runner import Array, Feeds, Runner, chunks, padded
from model.tokenizer import BOS, EOS, PAD
from model.transformer import AttentionWeights, Transformer

ROUNDING = 4  # this many times torch's own difference between f32 and f64 is tolerated
ROUNDING_CAP = 10  # but at most this many times the tolerance
INT8_TOLERANCE = 1e-3  # of log-probabilities, nats, from the int8 reference that follows the graph's levels
INT8_ATTENTION_TOLERANCE = 1e-4
LEVEL_SLACK = 0.01  # levels, beside the half that rounding explains
LARGEST_BATCH = 64
IMPOSSIBLE = -1000.0  # log-probabilities below count as equal: tokens that a bias forbids, whatever the rounding
LARGEST_OUTPUT = 2**24  # log-probabilities of one batch of answers


def check_values(runner: Runner, model: Transformer, tolerance: float) -> Iterator[str]:
    """Log-probabilities and attention against torch's, whole and token by token."""
    exact = copy.deepcopy(model).double()
    for inputs in grid(runner.sizes):
        expected, precise = torch_values(model, inputs), torch_values(exact, inputs)
        allowed = {name: rounding_allowance(tolerance, value, precise[name]) for name, value in expected.items()}
        found = runner.full(inputs.source, inputs.source_length, inputs.target)
        for name, value in expected.items():
            yield from differences(name, found[name], value, allowed[name], inputs)
        steps = runner.stepwise(inputs.source, inputs.source_length, inputs.target)
        yield from differences("logprobs token by token", steps, expected["logprobs"], allowed["logprobs"], inputs)


def rounding_allowance(tolerance: float, single: Array, double: Array) -> float:
    """The tolerance, or 4 times torch's own f32 rounding of these very values, but at most 10 times the tolerance."""
    own_rounding = float(np.abs(single - double).max())
    return max(tolerance, min(ROUNDING * own_rounding, ROUNDING_CAP * tolerance))


def check_int8_values(
    runner: Runner,
    graphs: dict[str, Path],
    model: Transformer,
    calibration: Calibration,
    int8_caches: bool,
    answers: list[tuple[list[int], list[int]]],
    limit: int | None = None,
    start: Sequence[int] = (),
) -> Iterator[str]:
    """Levels, log-probabilities and attention against the int8 reference: over the grid, then along greedy answers.

    `answers`: source ids, and target ids as the graphs decode them after the `start` tokens, up to `limit` tokens in
    all. Each target token must be the reference's most probable too.
    """
    reference, tracing = int8_reference(model, calibration, int8_caches), TracingRunner(runner, graphs)
    for inputs in grid(runner.sizes):
        arguments = (inputs.source, inputs.source_length, inputs.target)
        if not runner.kind:
            yield from _check_traced("", tracing.full(*arguments), runner.full(*arguments), tracing, reference, inputs)
        found = {"logprobs": tracing.stepwise(*arguments)}
        served = {"logprobs": runner.stepwise(*arguments)}
        yield from _check_traced(" token by token", found, served, tracing, reference, inputs)
    longest = len(start) + max((len(target) for _, target in answers), default=0) + 1
    rows = min(LARGEST_BATCH, max(1, LARGEST_OUTPUT // (longest * runner.sizes.target_vocab)))
    for batch in chunks(sorted(answers, key=lambda pair: len(pair[0])), rows):
        yield from _check_answers(tracing, reference, batch, limit or runner.sizes.max_length, start)


def _check_traced(
    way: str, found: Feeds, served: Feeds, tracing: TracingRunner, reference: Transformer, inputs: Inputs
) -> Iterator[str]:
    trace = tracing.take_trace(inputs.source, inputs.source_length)
    logprobs, weights = follow(reference, trace, torch.from_numpy(inputs.source), torch.from_numpy(inputs.target))
    expected = {"logprobs": logprobs.numpy()} | attention_arrays(weights)
    for problem in itertools.islice(trace.problems(LEVEL_SLACK), 1):  # the first is nearest to the cause
        yield f"levels{way} are off {inputs}: {problem}"
    for name, value in found.items():
        tolerance = INT8_ATTENTION_TOLERANCE if name.endswith("attention") else INT8_TOLERANCE
        yield from differences(f"{name}{way}", value, expected[name], tolerance, inputs)
        yield from differences(f"{name}{way} of the traced graph", value, served[name], 0.0, inputs)


def _check_answers(
    tracing: TracingRunner,
    reference: Transformer,
    batch: list[tuple[list[int], list[int]]],
    limit: int,
    start: Sequence[int],
) -> Iterator[str]:
    """Force greedy answers through the graphs: the reference, following their levels, must choose the same tokens."""
    source, source_length = padded([[*ids, EOS] for ids, _ in batch], PAD)
    first = len(start)  # the position whose next token is the answer's first
    said = [[*ids, EOS][: limit - first] for _, ids in batch]
    target, length = padded([[BOS, *start, *ids[:-1]] for ids in said], PAD)
    target = target[:, : int(length.max())]
    found = possible(tracing.stepwise(source, source_length, target))
    trace = tracing.take_trace(source, source_length)
    expected = possible(follow(reference, trace, torch.from_numpy(source), torch.from_numpy(target))[0].numpy())
    at = f"on {len(batch)} held-out inputs of {source_length.min()} to {source_length.max()} source tokens"
    for problem in itertools.islice(trace.problems(LEVEL_SLACK), 1):
        yield f"levels of greedy answers are off {at}: {problem}"
    is_answer = np.arange(target.shape[1]) < length[:, None]
    if not np.abs(found - expected)[is_answer].max() <= INT8_TOLERANCE:
        yield f"logprobs of greedy answers are off {at}: {worst(found, expected)}"
    expected[:, :, [PAD, BOS]] = -np.inf
    for row, ids in enumerate(said):
        logprobs = expected[row, first : first + len(ids)]
        margin = logprobs.max(-1) - logprobs[np.arange(len(ids)), ids]
        if not margin.max() <= 2 * INT8_TOLERANCE:
            step = int(margin.argmax())
            yield (
                f"decoding: the graph chooses token {ids[step]} at position {step} for the source {batch[row][0]}, and "
                f"the int8 reference {int(logprobs[step].argmax())}, by {margin[step]:.2g} nats"
            )


def differences(name: str, found: Array, expected: Array, allowed: float, inputs: Inputs) -> Iterator[str]:
    if found.shape != expected.shape:
        yield f"{name} has shape {found.shape}, not {expected.shape}, {inputs}"
        return
    if name.startswith("logprobs"):
        found, expected = possible(found), possible(expected)
    if name.startswith("encoder_attention"):  # padded queries do not count
        is_source = np.arange(inputs.source.shape[1]) < inputs.source_length[:, None]
        is_source = is_source[:, None, None, :, None]
        found, expected = np.where(is_source, found, 0), np.where(is_source, expected, 0)
    if not np.abs(found - expected).max() <= allowed:
        swapped = swapped_heads(found, expected) if "attention" in name else ""
        yield f"{name} is off by more than {allowed:.2g} {inputs}: {worst(found, expected)}{swapped}"


def torch_values(model: Transformer, inputs: Inputs) -> dict[str, Array]:
    weights = AttentionWeights()
    with torch.inference_mode():
        logits = model(torch.from_numpy(inputs.source), torch.from_numpy(inputs.target), weights)
    return {"logprobs": possible(logits.log_softmax(-1).numpy())} | attention_arrays(weights)


def possible(logprobs: Array) -> Array:
    """Log-probabilities, cut off below at IMPOSSIBLE."""
    return np.maximum(logprobs, IMPOSSIBLE)


def attention_arrays(weights: AttentionWeights) -> dict[str, Array]:
    """Each (B, layers, H, queries, keys)"""
    return {
        "encoder_attention": torch.stack(weights.encoder, 1).numpy(),
        "decoder_attention": torch.stack(weights.decoder, 1).numpy(),
        "cross_attention": torch.stack(weights.cross, 1).numpy(),
    }


def swapped_heads(found: Array, expected: Array) -> str:
    """(B, layers, H, T, S): a sentence if two heads of a layer are in each other's place."""
    for layer in range(expected.shape[1]):
        for a, b in itertools.combinations(range(expected.shape[2]), 2):
            crossed = np.allclose(found[:, layer, a], expected[:, layer, b], atol=1e-4)
            straight = np.allclose(found[:, layer, a], expected[:, layer, a], atol=1e-4)
            if crossed and not straight and np.allclose(found[:, layer, b], expected[:, layer, a], atol=1e-4):
                return f"; heads {a} and {b} of layer {layer} are swapped"
    return ""
