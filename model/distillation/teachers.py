"""Teachers' distributions on disk: the most probable tokens at each target position of a corpus, with probabilities.

    DIR/train.tsv                     the pairs: the true ones, then the words that the teachers labelled
    DIR/source.tokenizer.json         and target.tokenizer.json: the teachers', and therefore the student's
    DIR/teacher_starts.npy            (pairs + 1,) the first position of each pair
    DIR/teacher_tokens.npy            (positions, K) ids, most probable first
    DIR/teacher_probabilities.npy     (positions, K) they add up to 1
    DIR/distilled.json                which teachers, how they were trained, what was labelled

`attendant distill` writes it and `attendant train --distilled DIR` learns from it. A pair has a position for each
target token and one for the end token.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attendant.model.errors import UserError

TOP = 8  # tokens kept of a distribution
PAIRS, DESCRIPTION = "train.tsv", "distilled.json"
STARTS, TOKENS, PROBABILITIES = "teacher_starts.npy", "teacher_tokens.npy", "teacher_probabilities.npy"


@dataclass(frozen=True)
class TeacherDistributions:
    """Memory-mapped: read from disk as they are needed."""

    starts: np.ndarray
    tokens: np.ndarray
    probabilities: np.ndarray

    @staticmethod
    def open(directory: Path) -> TeacherDistributions:
        return TeacherDistributions(*(np.load(directory / n, mmap_mode="r") for n in (STARTS, TOKENS, PROBABILITIES)))

    @staticmethod
    def create(directory: Path, target_lengths: np.ndarray, vocabulary: int) -> TeacherDistributions:
        """New files for pairs with these numbers of target tokens, to be filled with `write`."""
        starts = np.concatenate([[0], np.cumsum(target_lengths.astype(np.int64) + 1)])
        np.save(directory / STARTS, starts)
        shape = (int(starts[-1]), min(TOP, vocabulary))
        types = {TOKENS: np.int32, PROBABILITIES: np.float16}
        tokens, probabilities = (_reserved(directory / name, kind, shape) for name, kind in types.items())
        return TeacherDistributions(starts, tokens, probabilities)

    @property
    def pairs(self) -> int:
        return len(self.starts) - 1

    def write(self, pairs: np.ndarray, distribution: Tensor) -> None:
        """Store the TOP most probable tokens at each position: numbers of pairs (B,), their distributions (B, T, V)."""
        probabilities, tokens = distribution.topk(self.tokens.shape[1])
        probabilities /= probabilities.sum(-1, keepdim=True)
        for row, pair in enumerate(pairs):
            start, stop = self.starts[pair], self.starts[pair + 1]
            self.tokens[start:stop] = tokens[row, : stop - start].numpy()
            self.probabilities[start:stop] = probabilities[row, : stop - start].numpy()

    def read(self, pairs: np.ndarray) -> tuple[Tensor, Tensor]:
        """Tokens and probabilities of some pairs, by their numbers: two of (B, T, K), 0 at padding."""
        lengths = self.starts[pairs + 1] - self.starts[pairs]
        shape = (len(pairs), int(lengths.max()), self.tokens.shape[1])
        tokens, probabilities = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        for row, (pair, length) in enumerate(zip(pairs, lengths, strict=True)):
            start = self.starts[pair]
            tokens[row, :length] = self.tokens[start : start + length]
            probabilities[row, :length] = self.probabilities[start : start + length]
        return torch.from_numpy(tokens), torch.from_numpy(probabilities)


def _reserved(path: Path, kind: type, shape: tuple[int, int]) -> np.ndarray:
    """An array on disk whose space is reserved: writing to a full disk through a map would kill the process."""
    array = np.lib.format.open_memmap(path, "w+", kind, shape)
    if hasattr(os, "posix_fallocate"):  # not on macOS and Windows
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def read_description(directory: Path) -> dict[str, Any]:
    path = directory / DESCRIPTION
    try:
        described: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is not there; name the directory that `attendant distill --out` wrote.") from None
    return described
