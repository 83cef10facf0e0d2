"""Facts about the machine that a figure was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

# Of the processor, those that decide how fast products are.
FLAGS = ("avx2", "fma", "avx512f", "avx512bw", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16")


def machine_facts() -> dict[str, Any]:
    return {
        "cpu": _cpuinfo("model name"),
        "kind": cpu_kind(_cpuinfo("vendor_id"), _cpuinfo("flags")),
        "flags": [flag for flag in _cpuinfo("flags").split() if flag in FLAGS],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def cpu_kind(vendor: str, flags: str) -> str:
    """The kind of processor whose figures may stand beside each other: its maker, and its widest integer products."""
    maker = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}.get(vendor, platform.machine())
    known = set(flags.split())
    vnni = "vnni" if known & {"avx512_vnni", "avx_vnni"} else "avx512" if "avx512f" in known else "avx2"
    return f"{maker}-{vnni}"


def _cpuinfo(name: str) -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.partition(":")[0].strip() == name:
            return line.partition(":")[2].strip()
    return ""
