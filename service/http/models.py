"""A model as requests see it: by its name, with an engine while it is loaded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from service.bundles import FoundBundle
from service.engine.interface import EngineInterface
from service.errors import CancelledError, DeadlineError
from service.http.submission import DisconnectWatch, Receive
from service.requests.served import ServedModel

LoadEngine = Callable[[Path | None], EngineInterface]  # starts a bundle's engine; None: the configured bundle


class Model:
    """A model's name, its bundle and, while it is loaded, its engine. Used in the event loop's thread only."""

    def __init__(self, bundle: FoundBundle | None = None) -> None:
        """`bundle` is None for the configured one, whose name is known once it is loaded."""
        self.bundle = bundle
        self.name = "" if bundle is None else bundle.name
        self.served: ServedModel | None = None
        self.loading: asyncio.Task[None] | None = None
        self.failure = None if bundle is None else bundle.problem  # of the last load, as a sentence
        self.retry_at = 0.0  # when a failed load may be tried again, by time.monotonic()
        self.last_used = 0.0
        self.planning = 0  # requests whose long texts are being tokenized, and that submit their tasks then
        self.leaving = False  # being evicted: takes no new requests, and is unloaded once it is idle
        self.removed = False  # by a reload
        self._waiting: set[asyncio.Future[None]] = set()  # requests that wait for it to be loaded

    @property
    def state(self) -> str:
        if self.served is not None:
            return "loaded"
        if self.loading is not None:
            return "loading"
        return "unloaded" if self.failure is None else "failed"

    @property
    def available(self) -> ServedModel | None:
        """What to submit a request to, before the next await; None if not loaded, or being evicted."""
        return None if self.leaving else self.served

    @property
    def wanted(self) -> bool:
        return bool(self._waiting)

    @property
    def idle(self) -> bool:
        """Loaded, and no request is queued, running or about to be submitted."""
        if self.served is None or self.planning or (self._waiting and not self.leaving):
            return False
        engine = self.served.engine  # in the order in which tasks move, queue then lanes, so that none is missed
        return not engine.count_waiting() and not engine.count_running()

    async def wait(self, deadline: float | None, receive: Receive) -> None:
        """Wait for `wake`; raises the error given to it, DeadlineError, or CancelledError if the client leaves."""
        loop = asyncio.get_running_loop()
        changed: asyncio.Future[None] = loop.create_future()
        watch = DisconnectWatch(loop, receive, partial(_settle, changed, CancelledError()))
        late = DeadlineError(
            f"the deadline passed before the model {self.name!r} was loaded; raise timeout_ms, or try again later."
        )
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        timer = None if seconds is None else loop.call_later(seconds, _settle, changed, late)
        self._waiting.add(changed)
        try:
            await changed
        finally:
            self._waiting.discard(changed)
            watch.stop()
            if timer is not None:
                timer.cancel()

    def wake(self, error: Exception | None = None) -> None:
        """Let every waiting request check again, or fail with `error`."""
        for changed in self._waiting:
            _settle(changed, error)


def _settle(changed: asyncio.Future[None], error: Exception | None) -> None:
    if not changed.done():
        changed.set_result(None) if error is None else changed.set_exception(error)
