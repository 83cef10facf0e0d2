"""The event loop's delay is what is on top of a sleep."""

from __future__ import annotations

import asyncio
import time

from attendant.service.watch.event_loop import watch_event_loop


def test_what_holds_up_the_event_loop_is_observed() -> None:
    observed: list[float] = []

    async def run() -> None:
        task = asyncio.create_task(watch_event_loop(observed.append, interval=0.01))
        await asyncio.sleep(0)  # it sleeps now
        time.sleep(0.3)
        while not observed:
            await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(run())
    assert observed[0] >= 0.25
    assert min(observed) >= 0
