"""Splits a validation part off the training file where no validation file is given, by a hash of the source.

A source is in one part with all of its targets, and stays there however the lines are ordered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attendant.model.corpus.pairs import read_pairs
from attendant.model.errors import DataError
from attendant.model.files import write_directory

DIRECTORY, TRAIN, VALID = "split", "train.tsv", "valid.tsv"
SHARE = 0.02  # of the pairs
FEWEST, MOST = 100, 2000  # pairs; LARGEST_SHARE takes precedence over FEWEST
LARGEST_SHARE = 0.1


@dataclass(frozen=True)
class Split:
    train: Path
    valid: Path
    train_pairs: int
    valid_pairs: int


def split(tsv: Path, run: Path, normalized: Callable[[str], str] = str) -> Split:
    """Write RUN/split/train.tsv and valid.tsv; sources that are the same once normalized are in the same part."""
    directory, counts = run / DIRECTORY, [0, 0]
    limit = validation_share(sum(1 for _ in read_pairs(tsv)))
    position = min(position_of(normalized(source)) for source, _ in read_pairs(tsv))
    limit = max(limit, position)  # at least one source

    def fill(beside: Path) -> None:
        with (
            (beside / TRAIN).open("w", encoding="utf-8") as train,
            (beside / VALID).open("w", encoding="utf-8") as valid,
        ):
            for source, target in read_pairs(tsv):
                part = position_of(normalized(source)) <= limit
                (valid if part else train).write(f"{source}\t{target}\n")
                counts[part] += 1
        if not counts[0]:
            raise DataError(f"{tsv} has one source alone, which cannot be split; give a validation file with --valid.")

    write_directory(directory, fill)
    return Split(directory / TRAIN, directory / VALID, *counts)


def validation_share(pairs: int) -> float:
    """The share of a file of so many pairs that is split off."""
    return min(max(SHARE, FEWEST / pairs), MOST / pairs, LARGEST_SHARE)


def position_of(source: str) -> float:
    """A number in [0, 1) that depends on the source alone, spread evenly."""
    return int.from_bytes(hashlib.sha256(source.encode()).digest()[:8]) / 2**64
