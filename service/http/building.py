"""Long answers are built in threads of their own, until the request's deadline and as long as its client stays.

What is built asks `check` now and then, which raises once nobody waits any more; an answer whose turn has not come by
then is never begun.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from attendant.service.errors import CancelledError, DeadlineError
from attendant.service.http.submission import DisconnectWatch, Receive
from attendant.service.requests.content import Check

THREADS = 2  # answers built at once: each is bytes of JSON, and all of them take turns with the event loop
LEAST_SECONDS = 5.0  # to build an answer that a deadline cut short, which is never refused for that deadline

Built = TypeVar("Built")


class Builder:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "attendant-answers")

    async def run(self, build: Callable[[Check], Built], deadline: float | None, receive: Receive) -> Built:
        """What `build` returns; DeadlineError past the deadline, CancelledError if the client leaves."""
        loop = asyncio.get_running_loop()
        wanted = Wanted(deadline)
        future = loop.run_in_executor(self._threads, _begin, build, wanted.check)
        end = wanted.ending(future)
        watch = DisconnectWatch(loop, receive, lambda: end(CancelledError()))
        timer = None if deadline is None else loop.call_later(deadline - time.monotonic(), end, late())
        try:
            return await future
        except asyncio.CancelledError:
            if isinstance(wanted.failure, CancelledError | DeadlineError):
                raise wanted.failure from None
            end(CancelledError())
            raise
        finally:
            watch.stop()
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class Wanted:
    """Whether someone waits for an answer; asked by the thread that builds it."""

    def __init__(self, deadline: float | None) -> None:
        self._deadline = deadline
        self.failure: Exception | None = None  # why nobody does

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise late()

    def ending(self, future: asyncio.Future[Built]) -> Callable[[Exception], None]:
        """A function that ends the wait for `future`: one that was not begun never is."""

        def end(failure: Exception) -> None:
            self.failure = self.failure or failure
            future.cancel()

        return end


def _begin(build: Callable[[Check], Built], check: Check) -> Built:
    check()
    return build(check)


def late() -> DeadlineError:
    return DeadlineError("the deadline passed before the answer was written; raise timeout_ms, or ask for less.")


def extended(deadline: float | None) -> float | None:
    """The time by which an answer is written that may hold what was found until the deadline."""
    return None if deadline is None else max(deadline, time.monotonic() + LEAST_SECONDS)
