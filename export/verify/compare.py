"""Values of a variant's graphs against torch's, over a grid of batches, lengths and paddings.

f32 and f16 are compared with the torch model itself, int8 with its own reference (export/verify/int8_reference.py).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch

from attendant.export.runner import PLAIN, Array, Feeds, GraphStepper, Runner, chunks, padded
from attendant.export.verify.double import Double
from attendant.export.verify.extent import WALK, extent_of
from attendant.export.verify.inputs import Inputs, grid, quoted, random_inputs, worst
from attendant.export.verify.int8_reference import Trace, follow, following, int8_reference
from attendant.export.verify.int8_trace import TracingRunner
from attendant.export.verify.rounding import with_rounding
from attendant.export.verify.windows import Windows
from attendant.model.text.tokenizer import BOS, EOS, PAD
from attendant.model.transformer import AttentionWeights, Transformer

INT8_TOLERANCE = 1e-3  # of log-probabilities, nats, from the int8 reference that follows the graph's levels
INT8_ATTENTION_TOLERANCE = 1e-4
LEVEL_SLACK = 0.01  # levels, beside the half that rounding explains
LARGEST_BATCH = 64
IMPOSSIBLE = -1000.0  # log-probabilities below count as equal: tokens that a bias forbids, whatever the rounding
LARGEST_OUTPUT = 2**24  # log-probabilities of one batch of answers


def check_values(runner: Runner, model: Transformer, tolerance: float) -> Iterator[str]:
    """Log-probabilities and attention against torch's, whole and token by token."""
    if runner.way == PLAIN:
        for inputs in grid(runner.sizes):
            expected = torch_values(model, inputs)
            found = runner.full(inputs.source, inputs.source_length, inputs.target)
            precise = cache(partial(torch_values, model, inputs, double=True))
            for name in list(expected):
                yield from rounded_differences(name, found.pop(name), expected.pop(name), tolerance, inputs, precise)
        yield from _check_long_pass(runner, model, tolerance)
    for inputs in grid(runner.sizes):
        walked = first_tokens(inputs)
        steps = runner.stepwise(walked.source, walked.source_length, walked.target)
        expected = torch_values(model, walked)
        yield from rounded_differences(
            "logprobs token by token",
            steps,
            expected["logprobs"],
            tolerance,
            walked,
            partial(torch_values, model, walked, double=True),
        )
    yield from check_windows(runner, model, tolerance)


def _check_long_pass(runner: Runner, model: Transformer, tolerance: float) -> Iterator[str]:
    """Log-probabilities alone, where the maps of all layers would take too much memory."""
    extent = extent_of(runner.sizes)
    if extent.whole > extent.maps:
        inputs = random_inputs(runner.sizes, [extent.whole], extent.whole)
        found = runner.full(inputs.source, inputs.source_length, inputs.target, maps=False)["logprobs"]
        expected = torch_logprobs(model, inputs)["logprobs"]
        precise = partial(torch_logprobs, model, inputs, double=True)
        yield from rounded_differences("logprobs", found, expected, tolerance, inputs, precise)


def check_windows(runner: Runner, model: Transformer, tolerance: float) -> Iterator[str]:
    """Tokens here and there up to the model's limit, after torch's own keys and values."""
    windows = Windows(runner.sizes, runner.way)
    if not windows.firsts:
        return
    stepper = GraphStepper(runner)
    precise: dict[int, Array] = {}
    for number, (window, expected) in enumerate(windows.of_torch(model)):
        if not number:
            stepper.encode(windows.inputs.source, windows.inputs.source_length)
        found = windows.steps(stepper, window)

        def exactly(first: int = window.first) -> Feeds:
            if not precise:
                with Double():
                    precise.update({other.first: value for other, value in windows.of_torch(model)})
            return {"logprobs": precise[first]}

        name = f"logprobs of tokens {window.first} to {window.last}"
        yield from rounded_differences(name, found, expected, tolerance, windows.inputs, exactly)


def first_tokens(inputs: Inputs) -> Inputs:
    """The inputs with a target that is decoded token by token: no longer than WALK."""
    return Inputs(inputs.source, inputs.source_length, inputs.target[:, :WALK])


def rounded_differences(
    name: str, found: Array, expected: Array, tolerance: float, inputs: Inputs, precise: Callable[[], Feeds]
) -> Iterator[str]:
    """`differences`; where there are some, torch's own rounding of these values, which takes its time, is allowed.

    `precise`: the values in f64, by the first word of their names.
    """
    problems = list(differences(name, found, expected, tolerance, inputs))
    if problems:
        allowed = rounding_allowance(tolerance, expected, precise()[name.partition(" ")[0]])
        problems = list(differences(name, found, expected, allowed, inputs))
    yield from problems


def rounding_allowance(tolerance: float, single: Array, double: Array) -> float:
    """The tolerance, widened by torch's own f32 rounding of these very values."""
    return with_rounding(tolerance, float(np.abs(single - double).max()))


def check_int8_values(
    runner: Runner,
    graphs: dict[str, Path],
    model: Transformer,
    answers: list[tuple[list[int], list[int]]],
    limit: int | None = None,
    start: Sequence[int] = (),
) -> Iterator[str]:
    """Levels, log-probabilities and attention against the int8 reference: over the grid, then along greedy answers.

    `answers`: source ids, and target ids as the graphs decode them after the `start` tokens, up to `limit` tokens in
    all. Each target token must be the reference's most probable too.
    """
    reference = int8_reference(model, int8_caches=runner.way != PLAIN)
    tracing = TracingRunner(runner, graphs)
    inputs = list(grid(runner.sizes))
    if runner.way == PLAIN:
        served = [runner.full(*each.arrays) for each in inputs]
        runner.let_go()
        for each in inputs:
            yield from _check_traced("", tracing.full(*each.arrays), served.pop(0), tracing, reference, each)
    walked = [first_tokens(each) for each in inputs]
    steps = [runner.stepwise(*each.arrays) for each in walked]
    runner.let_go()
    for each in walked:
        found, expected = {"logprobs": tracing.stepwise(*each.arrays)}, {"logprobs": steps.pop(0)}
        yield from _check_traced(" token by token", found, expected, tracing, reference, each)
    yield from _check_int8_windows(tracing, reference)
    longest = len(start) + max((len(target) for _, target in answers), default=0) + 1
    rows = min(LARGEST_BATCH, max(1, LARGEST_OUTPUT // (longest * runner.sizes.target_vocab)))
    for batch in chunks(sorted(answers, key=lambda pair: len(pair[0])), rows):
        yield from _check_answers(tracing, reference, batch, limit or runner.sizes.max_length, start)


def _check_int8_windows(tracing: TracingRunner, reference: Transformer) -> Iterator[str]:
    """Tokens up to the model's limit, after the reference's own keys and values, along the levels of the graphs."""
    windows = Windows(tracing.sizes, tracing.way)
    if not windows.firsts:
        return
    source, source_length = windows.inputs.source, windows.inputs.source_length
    stepper = GraphStepper(tracing)
    stepper.encode(source, source_length)
    trace = tracing.take_trace(source, source_length)
    with torch.inference_mode():
        with following(reference, trace):
            cache = windows.encode(reference)
        yield from _first_problem(trace, "of a source", windows.inputs)
        for window in windows.prefixes(reference, cache):
            found = windows.steps(stepper, window)
            trace = tracing.take_trace(source, source_length, window.first)
            with following(reference, trace):
                expected = windows.expected(reference, window, cache)
            name = f"of tokens {window.first} to {window.last}"
            yield from _first_problem(trace, name, windows.inputs)
            yield from differences(f"logprobs {name}", found, expected, INT8_TOLERANCE, windows.inputs)


def _first_problem(trace: Trace, of: str, inputs: Inputs) -> Iterator[str]:
    for problem in itertools.islice(trace.problems(LEVEL_SLACK), 1):
        yield f"levels {of} are off {inputs}: {problem}"


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
    targets = [[*ids, EOS][: limit - first] for _, ids in batch]
    target, length = padded([[BOS, *start, *ids[:-1]] for ids in targets], PAD)
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
    for row, ids in enumerate(targets):
        logprobs = expected[row, first : first + len(ids)]
        margin = logprobs.max(-1) - logprobs[np.arange(len(ids)), ids]
        if not margin.max() <= 2 * INT8_TOLERANCE:
            step = int(margin.argmax())
            yield (
                f"decoding: the graph chooses token {ids[step]} at position {step} for the source "
                f"{quoted(str(batch[row][0]))}, and the int8 reference {int(logprobs[step].argmax())}, "
                f"by {margin[step]:.2g} nats"
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


def torch_logprobs(model: Transformer, inputs: Inputs, double: bool = False) -> Feeds:
    """Log-probabilities alone: attention is computed by torch's fused kernel, and no map is held."""
    with torch.inference_mode(), Double() if double else contextlib.nullcontext():
        logits = model(torch.from_numpy(inputs.source), torch.from_numpy(inputs.target))
        return {"logprobs": possible(logits.log_softmax(-1).numpy())}


def torch_values(model: Transformer, inputs: Inputs, double: bool = False) -> dict[str, Array]:
    """Log-probabilities and attention of every layer and head, in f32 or f64."""
    weights = AttentionWeights()
    with torch.inference_mode(), Double() if double else contextlib.nullcontext():
        logits = model(torch.from_numpy(inputs.source), torch.from_numpy(inputs.target), weights)
    return {"logprobs": possible(logits.log_softmax(-1).numpy())} | attention_arrays(weights)


def possible(logprobs: Array) -> Array:
    """Log-probabilities, cut off below at IMPOSSIBLE; in place."""
    return np.maximum(logprobs, IMPOSSIBLE, out=logprobs)


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
