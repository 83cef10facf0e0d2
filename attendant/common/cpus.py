"""The processors that this process may run on."""

from __future__ import annotations

import os


def allowed_cpus() -> int:
    """Those of its affinity; a container's quota is not counted (`attendant.common.hardware` does that)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
