"""A corpus as text: lines of `source<TAB>target`, read one at a time. No torch is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attendant.model.errors import DataError


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, line) of a UTF-8 file, without line ends; a DataError names the file and the line that is not UTF-8."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    with file:
        for number, raw in enumerate(file, start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}, line {number}, is not UTF-8 (byte {error.start + 1} of the line); save the file as UTF-8."
                ) from None
            yield number, line.rstrip("\r\n")


def read_pairs(path: Path) -> Iterator[tuple[str, str]]:
    """The pairs of a TSV, one at a time; a DataError names the file and the line of whatever is not a pair."""
    number = 0
    for number, line in read_lines(path):
        yield _pair(line, f"{path}, line {number}")
    if number == 0:
        raise DataError(f"{path} is empty; it needs a line of source<TAB>target for each pair.")


def _pair(line: str, where: str) -> tuple[str, str]:
    fields = line.split("\t")
    if len(fields) != 2:
        tabs = f"{len(fields) - 1} tabs" if len(fields) > 2 else "no tab"
        raise DataError(f"{where}, has {tabs}; a line is source<TAB>target, with one tab between them.")
    for side, text in zip(("source", "target"), fields, strict=True):
        if not text.strip():
            raise DataError(f"{where}, has an empty {side}; give it a text or take the line out.")
    return fields[0], fields[1]


def is_field(text: str) -> bool:
    """Whether a text can be a side of a pair: not blank, and on one line without a tab."""
    return bool(text.strip()) and not set(text) & set("\t\r\n")


def read_references(path: Path) -> dict[str, list[str]]:
    """Each source of a TSV with all of its targets, in the order of the file."""
    references: dict[str, list[str]] = {}
    for source, target in read_pairs(path):
        references.setdefault(source, []).append(target)
    return references
