"""The same bits: whatever the batch, the number of threads and the instruction set."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attendant import kernels
from tests.kernels import cases
from tests.kernels.reference import Array

pytestmark = pytest.mark.skipif(kernels.library() is None, reason=kernels.why_missing())
PRECISIONS = pytest.mark.parametrize("int8", [True, False], ids=["int8", "f32"])
ROOT = Path(__file__).parents[2]


def all_cases(int8: bool, threads: int) -> list[cases.Case]:
    wide = {"int8": int8, "width": 64, "wide": 144, "threads": threads}
    return [
        *(cases.decoder(**wide, rows=rows, activation="gelu") for rows in (1, 3, 29)),
        *(cases.encoder(**wide, tokens=tokens, activation="silu") for tokens in ((5,), (130,), (9,) * 30)),
        cases.cross(int8=int8, width=64, tokens=(70, 3), threads=threads),
        cases.vocabulary(int8=int8, words=1500, rows=14, threads=threads),
        cases.embed(source=True, int8=int8, norm=True),
    ]


def digest(threads: int) -> str:
    """Of every output of every operator."""
    found = hashlib.sha256()
    for int8 in (True, False):
        for case in all_cases(int8, threads):
            for output in case.run():
                found.update(output.tobytes())
    return found.hexdigest()


def test_one_and_several_threads_give_the_same_bits() -> None:
    assert digest(1) == digest(2) == digest(3)


def test_every_instruction_set_gives_the_same_bits() -> None:
    code = "from tests.kernels.test_bits import digest; print(digest(2))"
    for name in kernels.supported():
        environment = {**os.environ, kernels.SETTING: name}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == digest(2), name


def taken(feeds: dict[str, Array], rows: Array, kept: set[str]) -> dict[str, Array]:
    return {name: value if name in kept else np.ascontiguousarray(value[rows]) for name, value in feeds.items()}


@PRECISIONS
@pytest.mark.parametrize("count", [1, 2, 7, 12, 13, 40])
def test_a_decoder_row_has_the_same_bits_in_any_company(int8: bool, count: int) -> None:
    case = cases.decoder(int8=int8, width=64, heads=4, wide=128, rows=40, past=30, slots=25, threads=2)
    sources = {name for name in case.feeds if name.startswith("cross_") or name == "source_length"}
    rows = np.random.default_rng(count).permutation(40)[:count]
    together = case.run()
    for found, expected in zip(case.session.run(None, taken(case.feeds, rows, sources)), together, strict=True):
        assert found.tobytes() == np.ascontiguousarray(expected[rows]).tobytes()


@PRECISIONS
def test_a_vocabulary_row_has_the_same_bits_in_any_company(int8: bool) -> None:
    case = cases.vocabulary(int8=int8, words=1100, rows=20, top=8, threads=2)
    together = case.run()
    for rows in (np.array([3]), np.arange(20)[::-1], np.array([7, 1, 12])):
        for found, expected in zip(case.session.run(None, taken(case.feeds, rows, {"top"})), together, strict=True):
            assert found.tobytes() == np.ascontiguousarray(expected[rows]).tobytes()


@PRECISIONS
def test_a_source_has_the_same_bits_in_any_company(int8: bool) -> None:
    tokens = (3, 31, 1, 8, 120)
    case = cases.encoder(int8=int8, width=64, tokens=tokens, threads=2)
    (together,) = case.run()
    ends = np.cumsum(tokens)
    for source, end in enumerate(ends):
        rows = slice(end - tokens[source], end)
        alone = {"x": case.feeds["x"][rows]} | dict.fromkeys(("length", "source_length"), np.array([tokens[source]]))
        (found,) = case.session.run(None, alone)
        assert found.tobytes() == np.ascontiguousarray(together[rows]).tobytes()
