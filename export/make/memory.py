"""What an export will hold at most, told before it begins, and what this process may take."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from attendant.common.hardware import ROOT, memory_limit
from attendant.export.bundle import BundleError
from attendant.export.signature import Sizes
from attendant.export.verify.extent import room_of, weight_bytes

MEGABYTE = 10**6
PROCESS = 450 * MEGABYTE  # Python, torch, onnx and onnxruntime
OF_WEIGHTS = 4.0  # times the weights in f32: those of torch, and a graph while it is loaded, folded and packed
OF_ROOM = 1.0  # times what a comparison may hold


def needed(sizes: Sizes) -> int:
    """Bytes that the process holds at most."""
    return int(PROCESS + OF_WEIGHTS * weight_bytes(sizes) + OF_ROOM * room_of(sizes))


def available(root: Path = ROOT) -> int:
    """Bytes that this process may still take: of the machine, its control groups and its own limits."""
    free = [memory_limit(root) - _held(root)]
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            free.append(1024 * int(value.split()[0]))
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            free.append(soft - _held(root))
    return min(free)


def check_memory(sizes: Sizes) -> int:
    """The bytes that are needed; BundleError if there are fewer, before anything is begun."""
    need, free = needed(sizes) - _held(ROOT), available()
    if need > free:
        raise BundleError(
            f"exporting this model takes up to {needed(sizes) // MEGABYTE:,} MB of memory, and this process may take "
            f"{max(0, free) // MEGABYTE:,} MB more; use a machine or a container with more, or end other processes."
        )
    return needed(sizes)


def _held(root: Path) -> int:
    """Resident bytes of this process."""
    fields = " ".join(_lines(root / "proc/self/statm")).split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
