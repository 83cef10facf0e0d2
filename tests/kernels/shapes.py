"""Random shapes of every layer's operator, from a seed, each against its definition in numpy.

    python -m tests.kernels.shapes [--count 100000] [--seed 1]

A shape draws sizes, rows, lengths, threads, precision, norm and activation. The first one whose result is no
longer explained by rounding is told with all that it drew, and ends the run with 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from attendant import kernels
from bench.report.record import RESULTS_HERE, write_record
from tests.kernels import cases
from tests.kernels.cases import Case
from tests.kernels.reference import Array

MODULE = "tests.kernels.shapes"
ACTIVATIONS = ("relu", "gelu", "silu", "gated_gelu", "gated_silu")
TOLERANCE = 4e-6  # of the largest value
OTHER_ROWS, INT8_STEP = 1 / 3, 0.1  # in int8: rows in which a value is rounded the other way, and what that changes
MEAN = 0.05  # of that step, over all values
Drawn = tuple[str, dict[str, Any]]
MAKERS: dict[str, Callable[..., Case]] = {
    "decoder": cases.decoder,
    "encoder": cases.encoder,
    "cross": cases.cross,
    "vocabulary": cases.vocabulary,
    "embed": cases.embed,
}


def drawn(seed: int, count: int) -> Iterator[Drawn]:
    """What operator, and with what arguments."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        kind = str(random.choice(["decoder"] * 4 + ["encoder"] * 3 + ["cross", "vocabulary", "embed"]))
        yield kind, {"int8": bool(random.integers(2)), **_ARGUMENTS[kind](random, int)}


def _layer(random: np.random.Generator) -> dict[str, Any]:
    """Sizes and kind of a layer: one of the paper's, or one of T5's with heads of a size of their own."""
    heads = int(random.integers(1, 5))
    width = 16 * heads * int(random.integers(1, 4))
    found: dict[str, Any] = {"heads": heads, "width": width, "wide": 16 * int(random.integers(1, 13))}
    found |= {"pre_norm": bool(random.integers(2)), "threads": int(random.integers(1, 3))}
    found |= {"seed": int(random.integers(2**31)), "activation": str(random.choice(ACTIVATIONS[:3]))}
    if random.random() < 0.3:
        unit = 8 if heads % 2 == 0 else 16  # of all heads together the features are a multiple of 16
        found |= {"head": unit * int(random.integers(1, 5)), "activation": str(random.choice(ACTIVATIONS))}
    return found


def _decoder(random: np.random.Generator, integer: Callable[[Any], int]) -> dict[str, Any]:
    counts = {"rows": (1, 20), "past": (1, 40), "slots": (1, 40), "sources": (1, 6)}
    return _layer(random) | {name: integer(random.integers(*limits)) for name, limits in counts.items()}


def _tokens(random: np.random.Generator) -> tuple[int, ...]:
    return tuple(int(n) for n in random.integers(1, random.choice([4, 20, 70]), random.integers(1, 6)))


def _encoder(random: np.random.Generator, _: object) -> dict[str, Any]:
    tokens = _tokens(random)
    ended = int(random.integers(2)) if min(tokens) > 1 else 0
    return _layer(random) | {"tokens": tokens, "ended": ended}


def _cross(random: np.random.Generator, integer: Callable[[Any], int]) -> dict[str, Any]:
    heads = integer(random.integers(1, 5))
    sizes = {"width": 16 * heads * integer(random.integers(1, 5)), "heads": heads}
    return {**sizes, "tokens": _tokens(random), "threads": integer(random.integers(1, 3))}


def _vocabulary(random: np.random.Generator, integer: Callable[[Any], int]) -> dict[str, Any]:
    words = integer(random.integers(1, 700))
    found = {"width": 16 * integer(random.integers(1, 9)), "words": words, "rows": integer(random.integers(1, 80))}
    found |= {"top": integer(random.integers(1, min(words, 60) + 1)), "threads": integer(random.integers(1, 3))}
    return {**found, "norm": bool(random.integers(2))}


def _embed(random: np.random.Generator, integer: Callable[[Any], int]) -> dict[str, Any]:
    sizes = {"width": 16 * integer(random.integers(1, 20)), "words": integer(random.integers(1, 300))}
    return {**sizes, "source": bool(random.integers(2)), "norm": bool(random.integers(2))}


_ARGUMENTS = {
    "decoder": _decoder, "encoder": _encoder, "cross": _cross, "vocabulary": _vocabulary, "embed": _embed
}  # fmt: skip


def check(kind: str, arguments: dict[str, Any]) -> None:
    case = MAKERS[kind](**arguments)
    found, expected = case.run(), case.expected
    if kind == "vocabulary":  # where two words differ by no more than rounding, either may come first
        top, ids, whole = found
        assert all(len(set(row)) == len(row) for row in ids.tolist()), "an id comes twice"
        found, expected = [top, np.take_along_axis(whole, ids, 1), whole], [expected[0], expected[0], expected[2]]
    for got, wanted in zip(found, expected, strict=True):
        compare(got, wanted, case.int8, OTHER_ROWS if kind != "encoder" else 1.0)  # a key is read by all of its source


def compare(found: Array, expected: Array, int8: bool, other_rows: float) -> None:
    """In f32 by rounding alone; in int8 a value may be rounded the other way, which shows in its row."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    differences = np.abs(found.astype(np.float64) - expected).reshape(len(found), -1)
    away = differences.max(-1, initial=0)
    off = away > TOLERANCE * max(1.0, np.abs(expected).max(initial=0))
    most = max(1.0, other_rows * len(off)) if int8 else 0
    assert off.sum() <= most, f"{off.sum()} of {len(off)} rows are off, by up to {away.max()}"
    step = 1.0 if found.dtype == np.int8 else INT8_STEP
    assert away.max(initial=0) <= step, f"one is off by {away.max()}"
    assert differences.size == 0 or differences.mean() <= MEAN * step, (
        f"they are off by {differences.mean()} on average"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if kernels.library() is None:
        print(kernels.why_missing(), file=sys.stderr)
        return 1
    began, counted = time.perf_counter(), dict.fromkeys(MAKERS, 0)
    for kind, arguments in drawn(given.seed, given.count):
        try:
            check(kind, arguments)
        except Exception as error:
            print(f"{kind} {arguments}: {type(error).__name__} {error}", flush=True)
            return 1
        counted[kind] += 1
    print(f"{counted} in {time.perf_counter() - began:.0f} s")
    rows = [{"name": name, "shapes": count, "faults": 0} for name, count in counted.items()]
    write_record(RESULTS_HERE / "kernel_shapes.json", MODULE, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
