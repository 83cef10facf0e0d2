"""What a reader of files is to the fuzzers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Reader:
    read: Callable[[Path], object]
    seeds: Callable[[], list[bytes]]
    errors: tuple[type[BaseException], ...]  # that its caller turns into a sentence
    name: str = "file"  # that it looks for, in its directory
    words: tuple[bytes, ...] = ()
    prepare: Callable[[Path], object] = lambda _: None  # what else is in the directory, written once
    share: float = 1.0  # of the inputs: one that takes long gets fewer
    acts: tuple[str, ...] = ()  # events that are its work (bench.reliability.fuzz.guard)
    writes: bool = False  # in its directory


def written(reader: Reader, directory: Path, data: bytes) -> Path:
    path = directory / reader.name
    path.write_bytes(data)
    return path


def call(reader: Reader, path: Path) -> BaseException | None:
    """None if the file was read or refused as it may be; else the error."""
    try:
        reader.read(path)
    except reader.errors:
        return None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return error
    return None
