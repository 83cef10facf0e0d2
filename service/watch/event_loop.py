"""How late the event loop is: what every request pays on top of its own work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

INTERVAL = 0.25  # seconds between two looks


async def watch_event_loop(observe: Callable[[float], None], interval: float = INTERVAL) -> None:
    """Call `observe` with the seconds by which each of many short sleeps was too long, until cancelled."""
    while True:
        before = time.monotonic()
        await asyncio.sleep(interval)
        observe(max(0.0, time.monotonic() - before - interval))
