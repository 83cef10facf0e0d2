"""numpy's .npz archives of plain numbers. Sizes are checked before anything is unpacked; objects are never read."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

KINDS = re.compile(r"f[248]|[iu][1248]|b1|S\d+")  # floating point, integers, flags, bytes
MOST_ARRAYS = 100_000
MOST_PACKED = 100  # how many times its size on disk an archive may unpack to
FREE = 2**20  # bytes that may be unpacked in any case


def read(path: Path) -> dict[str, NDArray[Any]]:
    """Arrays by name. Raises ValueError with what is wrong, and what zipfile and numpy raise."""
    with path.open("rb") as file:
        with zipfile.ZipFile(file) as archive:
            _check(archive.infolist(), path.stat().st_size)
        file.seek(0)
        arrays = np.load(file, allow_pickle=False)
        if not isinstance(arrays, NpzFile):  # a zip archive after something else
            raise ValueError("it does not begin as a zip archive")
        return {name: _plain(arrays, name) for name in arrays}


def _check(entries: list[zipfile.ZipInfo], size: int) -> None:
    """Refuse an archive of `size` bytes by what it declares: zipfile never unpacks more of an entry than that."""
    if len(entries) > MOST_ARRAYS:
        raise ValueError(f"it holds {len(entries):,} files, more than {MOST_ARRAYS:,}")
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > max(FREE, MOST_PACKED * size):
        raise ValueError(f"it unpacks to {unpacked:,} bytes, more than {MOST_PACKED} times its size")
    seen: set[str] = set()
    for name in (entry.filename.removesuffix(".npy") for entry in entries):
        if name in seen:
            raise ValueError(f"it holds {name!r:.60} twice")
        seen.add(name)


def _plain(arrays: NpzFile, name: str) -> NDArray[Any]:
    try:
        array = arrays[name]
    except MemoryError:  # memory is taken for the declared shape before the content is read
        raise ValueError(f"{name!r:.60} has a shape that does not fit into memory") from None
    except ValueError as error:
        raise ValueError(f"{name!r:.60} cannot be read: {error}") from None
    if not isinstance(array, np.ndarray):  # numpy's answer to a file that is not in its format
        raise ValueError(f"{name!r:.60} is no array")
    if not KINDS.fullmatch(array.dtype.str[1:]):
        raise ValueError(f"{name!r:.60} holds {array.dtype}, which is refused: only numbers of up to 64 bits are read")
    return array
