"""Random inputs of the checks: a grid of batches, lengths and paddings. No torch is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attendant.export import signature
from attendant.export.runner import Array, padded
from attendant.export.verify.extent import extent_of
from attendant.model.text.tokenizer import BOS, EOS, PAD

SEED = 1
SHOWN = 60  # characters of a text in a problem
FIRST_REAL_ID = EOS + 1
BATCHED, EXACT = 2, 64  # a batch's sources are this many times shorter than the longest, where that has more tokens


@dataclass(frozen=True)
class Inputs:
    """One batch of the grid."""

    source: Array
    source_length: Array
    target: Array

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        return self.source, self.source_length, self.target

    def __str__(self) -> str:
        lengths, (batch, target_length) = self.source_length, self.target.shape
        return f"at batch {batch}, source lengths {lengths.min()} to {lengths.max()}, target length {target_length}"


def grid(sizes: signature.Sizes) -> Iterator[Inputs]:
    """Batches of 1 to 16, lengths from 1 to the longest whose attention fits, padded and not, of random tokens."""
    limit = extent_of(sizes).maps
    for lengths, target_length in (
        ([1], 1),
        ([limit], limit),
        ([1, max(1, limit // BATCHED), 3] if limit > EXACT else [1, limit, 3], 2),
        ([5, 2, 7, 7, 1], 9),
        ([3] * 16, 13),
    ):
        yield random_inputs(sizes, [min(n, limit) for n in lengths], min(target_length, limit))


def random_inputs(sizes: signature.Sizes, lengths: list[int], target_length: int) -> Inputs:
    rng = np.random.default_rng(SEED)
    rows = [[*rng.integers(FIRST_REAL_ID, sizes.source_vocab, n - 1).tolist(), EOS] for n in lengths]
    source, source_length = padded(rows, PAD)
    target = rng.integers(FIRST_REAL_ID, sizes.target_vocab, (len(lengths), target_length))
    target[:, 0] = BOS
    return Inputs(source, source_length, target)


def worst(found: Array, expected: Array) -> str:
    """Where two arrays are furthest apart, and both values there."""
    distance = np.nan_to_num(np.abs(found.astype(np.float64) - expected), nan=np.inf)
    at = np.unravel_index(int(distance.argmax()), distance.shape)
    place = ", ".join(map(str, at))
    return f"worst at [{place}], {found[at]:.6g} and not {expected[at]:.6g}"


def quoted(text: str) -> str:
    """A text for a sentence, cut."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]} ...")
