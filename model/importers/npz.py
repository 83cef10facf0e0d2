"""numpy's .npz archives of plain numbers. Sizes are checked before anything is unpacked; objects are never read."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

KINDS = "fiubS"  # floating point, integers, flags, bytes
LARGEST_HEADER = 10_000  # bytes
MOST_ARRAYS = 100_000
MOST_PACKED = 100  # how many times its size on disk an archive may unpack to
FREE = 2**20  # bytes that may be unpacked in any case
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read(path: Path) -> dict[str, np.ndarray]:
    """Arrays by name. Raises ValueError with what is wrong."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if len(entries) > MOST_ARRAYS:
            raise ValueError(f"it holds {len(entries):,} files, more than {MOST_ARRAYS:,}")
        unpacked = sum(entry.file_size for entry in entries)
        if unpacked > max(FREE, MOST_PACKED * path.stat().st_size):
            raise ValueError(f"it unpacks to {unpacked:,} bytes, more than {MOST_PACKED} times its size")
        found: dict[str, np.ndarray] = {}
        for entry in entries:
            name = entry.filename.removesuffix(".npy")
            if name in found:
                raise ValueError(f"it holds {name!r:.60} twice")
            found[name] = _array(archive, entry, name)
        return found


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str) -> np.ndarray:
    with archive.open(entry) as file:
        version = npy.read_magic(file)
        if version not in HEADERS:
            raise ValueError(f"{name!r:.60} has numpy's format {version}; (1, 0) and (2, 0) can be read")
        shape, columns_first, dtype = HEADERS[version](file, max_header_size=LARGEST_HEADER)
        if dtype.kind not in KINDS:
            raise ValueError(f"{name!r:.60} holds {dtype}, which is refused: only numbers are read")
        if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize > entry.file_size:
            raise ValueError(f"{name!r:.60} is shorter than its shape {shape} says")
        content = file.read(entry.file_size)
    count = math.prod(shape)
    if len(content) != count * dtype.itemsize:
        raise ValueError(f"{name!r:.60} has {len(content):,} bytes, not those of its shape {shape}")
    array = np.frombuffer(content, dtype)
    return array.reshape(shape[::-1]).T if columns_first else array.reshape(shape)
