"""What a load needs, told before it begins: in the log, and as a metric."""

from __future__ import annotations

import logging

from attendant.export.bundle import Bundle
from attendant.service.memory import MEGABYTE, MemoryAccount
from attendant.service.models.bundles import bundle_weight_bytes
from attendant.service.models.loading import MEMORY_PER_WEIGHT

log = logging.getLogger("attendant")


def note_need(bundle: Bundle, precision: str, name: str, memory: MemoryAccount) -> int:
    """Log what the load of a bundle will take, and what is left for it; the bytes, without its KV caches."""
    needed = MEMORY_PER_WEIGHT * bundle_weight_bytes(bundle.directory, precision)
    left = max(0, memory.limit - memory.model_bytes - memory.held)
    tell = log.warning if needed > left else log.info
    tell(
        "loading %s: about %d MB, and KV caches as it decodes; %d MB are left of %d MB",
        name,
        needed // MEGABYTE,
        left // MEGABYTE,
        memory.limit // MEGABYTE,
    )
    return needed
