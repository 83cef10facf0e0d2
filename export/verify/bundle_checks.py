"""Checks of a bundle alone, by onnxruntime: its interface, its rows, its merge graph, its certificate's replay.

They need neither torch nor onnx, so that `attendant verify BUNDLE` runs where only the service is installed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attendant.export import signature
from attendant.export.bundle import LEAST_WIDTH, Bundle
from attendant.export.precisions import PRECISIONS
from attendant.export.runner import PLAIN, Array, Runner
from attendant.export.verify import replay
from attendant.export.verify.inputs import random_inputs, worst
from attendant.model.text.tokenizer import PAD

SEED = 1


def guarded(name: str, check: Iterator[str]) -> Iterator[str]:
    """The problems that a check yields; a check that cannot run is a problem too."""
    try:
        yield from check
    except Exception as error:  # onnxruntime's kinds have no common base, and a bundle's content can break any check
        reason = next(iter(str(error).splitlines()), "")
        yield f"{name}: the check cannot run: {type(error).__name__}: {reason}"


def check_interface(runner: Runner, variant: str) -> Iterator[str]:
    precision = PRECISIONS[variant]
    kinds = {"int64": "tensor(int64)", "float32": "tensor(float)", "float16": "tensor(float16)", "int8": "tensor(int8)"}
    for graph in runner.graphs:
        session = runner.session(graph)
        for side, wanted, found in (
            ("input", signature.inputs(graph, runner.sizes, precision.quantized), session.get_inputs()),
            ("output", signature.outputs(graph, runner.sizes, precision.quantized), session.get_outputs()),
        ):
            by_name = {value.name: value for value in found}
            for name in by_name.keys() - {value.name for value in wanted}:
                yield f"{graph}: {side} {name} is not in the table"
            for value in wanted:
                if value.name not in by_name:
                    yield f"{graph}: {side} {value.name} is missing"
                    continue
                have, shape = by_name[value.name], value.shape(runner.sizes)
                kind = precision.dtype_of(value.kind, graph)
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

    def whole(source: Array, source_length: Array, target: Array) -> Array:
        return runner.full(source, source_length, target)["logprobs"]

    ways = {"token by token": runner.stepwise} | ({"whole": whole} if runner.way == PLAIN else {})
    for way, run in ways.items():
        together = run(batch.source, batch.source_length, batch.target)
        for row, length in enumerate(lengths):
            for name, wide in (("alone", length), ("alone and padded", min(limit, 2 * length + 5))):
                mine = np.full((1, max(LEAST_WIDTH, wide)), PAD)
                mine[0, :length] = batch.source[row, :length]
                single = run(mine, batch.source_length[row : row + 1], batch.target[row : row + 1])
                if not np.abs(together[row] - single[0]).max() <= allowed:
                    yield (
                        f"rows: a row of {length} source tokens {name} is not what it is in a batch of "
                        f"{len(lengths)}, {way}: {worst(single[0], together[row])}"
                    )


def check_merge(runner: Runner, dtype: str) -> Iterator[str]:
    rng, sizes = np.random.default_rng(SEED), runner.sizes
    held = rng.normal(size=(3, sizes.heads, 5, sizes.head)).astype(dtype)
    added = rng.normal(size=(2, sizes.heads, 2, sizes.head)).astype(dtype)
    index = np.array([4, 0, 0, 3, 2])
    for length in (1, 4, 7):
        expected = np.zeros((5, sizes.heads, length, sizes.head), dtype)
        for row, part in enumerate([*held, *added]):
            expected[row, :, : part.shape[1]] = part[:, :length]
        feeds = {"held": held, "added": added, "index": index, "length": np.array([length])}
        found = runner.run("merge", feeds)["merged"]
        if not np.array_equal(found, expected[index]):
            yield f"merge: rows of length {length} are not those picked"


def check_drift(bundle: Bundle, runner: Runner, tolerance: float) -> Iterator[str]:
    found = replay.drift(bundle.certificate, runner)
    if not found <= tolerance:
        yield f"certificate: log-probabilities drift by {found:.2g}, over the tolerance of {tolerance:.2g}"
