"""Glossaries: what phrases of a source are called in the target.

A glossary is a file NAME.tsv in a directory beside the bundle's that has its name and `.glossaries` after it. A line is
a source phrase, a tab and a target phrase, and may have further forms of that after further tabs. Empty lines and those
that begin with # are left out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from attendant.common.regular import read_regular
from attendant.service.errors import StartError
from attendant.service.text.phrases import SPACELESS
from attendant.service.text.tokenizer import Tokenizer

SUFFIX = ".glossaries"
NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
MOST_GLOSSARIES, MOST_TERMS, MOST_BYTES = 100, 100_000, 16 * 2**20  # of all glossaries of a bundle
MOST_FORMS, LONGEST_PHRASE = 20, 1000  # of a line; characters
KEY = 2  # first characters by which phrases are looked up


@dataclass(frozen=True)
class Pair:
    """A source phrase, and the forms of what it must be called in the target."""

    source: str
    targets: tuple[str, ...]


class Glossary:
    """Pairs by their source phrases; never changed."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self._pairs = {pair.source: pair for pair in pairs}
        self._folded = {fold(source): source for source in self._pairs if fold(source) == source}
        self._lengths: dict[str, list[int]] = {}
        for source in self._pairs:
            lengths = self._lengths.setdefault(fold(source[:KEY]), [])
            if len(source) not in lengths:
                lengths.append(len(source))
        for lengths in self._lengths.values():
            lengths.sort(reverse=True)

    def __len__(self) -> int:
        return len(self._pairs)

    def pairs(self) -> Iterator[Pair]:
        yield from self._pairs.values()

    def find(self, text: str) -> list[Pair]:
        """The pairs whose source phrase is in a text, each once, in the order of the text.

        A phrase is found as whole words, the longest first, and no two overlap. One without capitals is found in any
        case, one with a capital as it is written.
        """
        found: dict[str, Pair] = {}
        folded, place = fold(text), 0
        while place < len(text):
            pair = self._at(text, folded, place)
            if pair is not None:
                found[pair.source] = pair
            place += 1 if pair is None else len(pair.source)
        return list(found.values())

    def _at(self, text: str, folded: str, place: int) -> Pair | None:
        for key in (folded[place : place + KEY], folded[place : place + 1]):
            for length in self._lengths.get(key, ()):
                stop = place + length
                if stop > len(text) or not _is_edge(text, place) or not _is_edge(text, stop):
                    continue
                pair = self._pairs.get(text[place:stop])
                if pair is None and (source := self._folded.get(folded[place:stop])) is not None:
                    pair = self._pairs[source]
                if pair is not None:
                    return pair
        return None


def fold(text: str) -> str:
    """Lower case, character by character, so that places stay what they are."""
    lower = text.lower()
    return lower if len(lower) == len(text) else "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


def _is_edge(text: str, place: int) -> bool:
    """Whether a word may begin or end here: not between two letters or digits of a script with spaces."""
    if not 0 < place < len(text):
        return True
    before, after = text[place - 1], text[place]
    if not (before.isalnum() or before == "_") or not (after.isalnum() or after == "_"):
        return True
    return bool(SPACELESS.match(before) or SPACELESS.match(after))


def directory_of(bundle: Path) -> Path:
    """Where a bundle's glossaries are, if it has any."""
    resolved = bundle.resolve()
    return resolved.with_name(resolved.name + SUFFIX)


def read_glossaries(bundle: Path) -> dict[str, Glossary]:
    """A bundle's glossaries by name; StartError says which line of which file is wrong."""
    found = {path.stem: read_glossary(path) for path in _files(bundle)}
    count = sum(map(len, found.values()))
    if count > MOST_TERMS:
        raise StartError(f"{directory_of(bundle)} has {count:,} terms; a bundle has at most {MOST_TERMS:,}.")
    return found


def digest_of(bundle: Path) -> str:
    """SHA-256 of all glossaries of a bundle; empty if it has none."""
    found = hashlib.sha256()
    files = _files(bundle)
    for path in files:
        found.update(f"{path.name}\0".encode() + hashlib.sha256(_read(path)).digest())
    return found.hexdigest() if files else ""


def _files(bundle: Path) -> list[Path]:
    directory = directory_of(bundle)
    try:
        files = sorted(path for path in directory.iterdir() if path.suffix == ".tsv")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StartError(f"{directory} cannot be read: {error.strerror}.") from None
    if len(files) > MOST_GLOSSARIES:
        raise StartError(f"{directory} has {len(files)} glossaries; a bundle has at most {MOST_GLOSSARIES}.")
    for path in files:
        if not NAME.fullmatch(path.stem):
            raise StartError(f"{path} names a glossary; its name takes 1 to 100 characters of A-Za-z0-9._-.")
    try:
        size = sum(path.stat().st_size for path in files)
    except OSError as error:
        raise StartError(f"{directory} cannot be read: {error.strerror}.") from None
    if size > MOST_BYTES:
        raise StartError(f"{directory} has {size:,} bytes of glossaries; a bundle has at most {MOST_BYTES:,}.")
    return files


def _read(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror or error}.") from None


def read_glossary(path: Path) -> Glossary:
    try:
        text = _read(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise StartError(f"{path} is not UTF-8: its byte {error.start + 1} cannot be read.") from None
    lines: dict[str, int] = {}
    pairs = []
    for number, line in enumerate(text.split("\n"), 1):
        pair = _parse(line.rstrip("\r"), f"{path}:{number}")
        if pair is None:
            continue
        if pair.source in lines:
            raise StartError(
                f"{path}:{number}: {pair.source!r} is on line {lines[pair.source]} already; put its forms on one line."
            )
        lines[pair.source] = number
        pairs.append(pair)
    return Glossary(pairs)


def _parse(line: str, place: str) -> Pair | None:
    if not line.strip() or line.startswith("#"):
        return None
    source, *targets = (column.strip() for column in line.split("\t"))
    while targets and not targets[-1]:
        targets.pop()
    if not source or not targets or not all(targets):
        raise StartError(f"{place}: a line takes a source phrase, a tab and a target phrase, none of them empty.")
    if len(targets) > MOST_FORMS or max(map(len, (source, *targets))) > LONGEST_PHRASE:
        raise StartError(
            f"{place}: a line takes at most {MOST_FORMS} forms, and a phrase at most {LONGEST_PHRASE} characters."
        )
    return Pair(source, tuple(dict.fromkeys(targets)))


def check_targets(glossaries: Mapping[str, Glossary], tokenizer: Tokenizer, longest: int, bundle: Path) -> None:
    """StartError if a target phrase has what the vocabulary lacks, or more than `longest` tokens."""
    for name, glossary in glossaries.items():
        pairs = [(pair, target) for pair in glossary.pairs() for target in pair.targets]
        encoded = tokenizer.encode_all([target for _, target in pairs])
        for (pair, target), ids in zip(pairs, encoded, strict=True):
            if tokenizer.unknown in ids:
                wrong = "has what the model's vocabulary lacks"
            elif not 0 < len(ids) <= longest:
                wrong = f"has {len(ids)} tokens, and 1 to {longest} fit"
            else:
                continue
            raise StartError(
                f"{directory_of(bundle) / name}.tsv: {target[:40]!r}, for {pair.source[:40]!r}, {wrong}; write it "
                "otherwise, or take the line out."
            )
