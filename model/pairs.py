"""A corpus as text: lines of `source<TAB>target`, read one at a time. No torch is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from model.errors import DataError


def read_pairs(path: Path) -> Iterator[tuple[str, str]]:
    """The pairs of a TSV, one at a time; a DataError names the file and the line of whatever is not a pair."""
    number = 0
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    with file:
        for number, raw in enumerate(file, start=1):
            yield _pair(raw, path, number)
    if number == 0:
        raise DataError(f"{path} is empty; it needs a line of source<TAB>target for each pair.")


def _pair(raw: bytes, path: Path, number: int) -> tuple[str, str]:
    where = f"{path}, line {number}"
    try:
        line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}, is not UTF-8 (byte {error.start + 1} of the line); save the file as UTF-8."
        ) from None
    fields = line.rstrip("\r\n").split("\t")
    if len(fields) != 2:
        tabs = f"{len(fields) - 1} tabs" if len(fields) > 2 else "no tab"
        raise DataError(f"{where}, has {tabs}; a line is source<TAB>target, with one tab between them.")
    for side, text in zip(("source", "target"), fields, strict=True):
        if not text.strip():
            raise DataError(f"{where}, has an empty {side}; give it a text or take the line out.")
    return fields[0], fields[1]


def read_references(path: Path) -> dict[str, list[str]]:
    """Each source of a TSV with all of its targets, in the order of the file."""
    references: dict[str, list[str]] = {}
    for source, target in read_pairs(path):
        references.setdefault(source, []).append(target)
    return references
