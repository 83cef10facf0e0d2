"""A model as requests see it: its name, its bundle, its engine while it is loaded, and every change of its state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, final

from attendant.service.engine.interface import EngineInterface
from attendant.service.errors import CancelledError, DeadlineError
from attendant.service.models.bundles import FoundBundle
from attendant.service.requests.served import ServedModel

LoadEngine = Callable[[Path | None], EngineInterface]  # starts a bundle's engine; None: the configured bundle


class ClientWatch(Protocol):
    def stop(self) -> None: ...


WatchClient = Callable[[Callable[[], None]], ClientWatch]  # calls the function once the client has disconnected


class ModelStateError(RuntimeError):
    """A transition that the model's state does not allow: a bug of the caller, which changes nothing."""


@final
class Model:
    """One model, changed by its transitions alone and in the event loop's thread only; the rest is read-only.

        unloaded, failed ── begin_load ──► loading ── serve ──► loaded ── begin_eviction ──► loaded, evicting
            ▲     ▲                           │                 │    ▲                          │    │
            │     └── fail_load, end_load ────┘                 │    └───── cancel_eviction ────┘    │
            └──────────────────────────────────── unload ───────┴────────────────────────────────────┘

    | transition              | where                               | then                                             |
    |-------------------------|-------------------------------------|--------------------------------------------------|
    | begin_load(task)        | not available, no load, not removed | loading; loaded while it is being evicted        |
    | serve(served)           | not removed                         | loaded, available, without a failure             |
    | fail_load(reason, when) | a load                              | failed at its end; if it is loaded, it serves on |
    | end_load(error)         | a load                              | loaded, failed, or unloaded if it was given up   |
    | begin_eviction()        | available                           | loaded, and takes no new requests                |
    | cancel_eviction()       | evicting                            | available                                        |
    | unload()                | loaded                              | unloaded, or loading if a load is queued         |
    | renew(bundle)           | same name, not removed              | what it serves, or loads next, is of this bundle |
    | refuse_bundle(reason)   | not removed                         | failed; if it is loaded, it serves on            |
    | remove()                | not removed                         | removed: never loaded again                      |
    """

    __slots__ = (
        "_bundle",
        "_evicting",
        "_failure",
        "_last_used",
        "_loading",
        "_name",
        "_planning",
        "_removed",
        "_retry_at",
        "_served",
        "_waiting",
    )

    def __init__(self, bundle: FoundBundle | None = None) -> None:
        """`bundle` is None for the configured one, whose name is known once it is loaded."""
        self._bundle = bundle
        self._name = "" if bundle is None else bundle.name
        self._served: ServedModel | None = None
        self._loading: asyncio.Task[None] | None = None
        self._failure = None if bundle is None else bundle.problem
        self._retry_at = 0.0
        self._last_used = 0.0
        self._planning = 0
        self._evicting = False
        self._removed = False
        self._waiting: set[asyncio.Future[None]] = set()  # requests that wait for it to be loaded

    @property
    def name(self) -> str:
        return self._name

    @property
    def bundle(self) -> FoundBundle | None:
        return self._bundle

    @property
    def state(self) -> str:
        """One of MODEL_STATES."""
        if self._served is not None:
            return "loaded"
        if self._loading is not None:
            return "loading"
        return "unloaded" if self._failure is None else "failed"

    @property
    def served(self) -> ServedModel | None:
        """The running engine, also while the model is being evicted; None if it is not loaded."""
        return self._served

    @property
    def available(self) -> ServedModel | None:
        """What to submit a request to, before the next await; None if not loaded, or being evicted."""
        return None if self._evicting else self._served

    @property
    def loading(self) -> asyncio.Task[None] | None:
        """The load that is under way, or queued behind others."""
        return self._loading

    @property
    def failure(self) -> str | None:
        """Why the last load or reload failed, as a sentence."""
        return self._failure

    @property
    def retry_at(self) -> float:
        """When a failed load may be tried again, by time.monotonic()."""
        return self._retry_at

    @property
    def last_used(self) -> float:
        return self._last_used

    @property
    def planning(self) -> int:
        """Requests whose long texts are being tokenized, and that submit their tasks then."""
        return self._planning

    @property
    def evicting(self) -> bool:
        """Takes no new requests, and is unloaded once it is idle."""
        return self._evicting

    @property
    def removed(self) -> bool:
        """By a reload: its directory is no longer there."""
        return self._removed

    @property
    def wanted(self) -> bool:
        """Whether a request waits for it to be loaded."""
        return bool(self._waiting)

    @property
    def idle(self) -> bool:
        """Loaded, and no request is queued, running or about to be submitted."""
        if self._served is None or self._planning or (self._waiting and not self._evicting):
            return False
        engine = self._served.engine  # in the order in which tasks move, queue then lanes, so that none is missed
        return not engine.count_waiting() and not engine.count_running()

    def begin_load(self, task: asyncio.Task[None]) -> None:
        """`task` loads the model, and calls `end_load` however it ends."""
        self._check(self._loading is None and self.available is None and not self._removed, "begin a load")
        self._loading = task

    def serve(self, served: ServedModel) -> ServedModel | None:
        """Serve with this from now on; returns what it replaces, which gets no new requests."""
        self._check(not self._removed, "be loaded")
        self._check(self._bundle is None or served.name == self._name, f"be loaded as {served.name!r}")
        replaced, self._served, self._name = self._served, served, served.name
        self._failure, self._retry_at, self._evicting = None, 0.0, False
        self.wake()
        return replaced

    def fail_load(self, reason: str, retry_at: float) -> None:
        self._check(self._loading is not None, "fail to load")
        self._failure, self._retry_at = reason, retry_at

    def end_load(self, error: Exception | None = None) -> None:
        """The load is over; with `error`, the requests that wait for it fail with it."""
        self._check(self._loading is not None, "end a load")
        self._loading = None
        self.wake(error)

    def begin_eviction(self) -> None:
        self._check(self.available is not None, "be evicted")
        self._evicting = True

    def cancel_eviction(self) -> None:
        self._check(self._evicting, "be kept")
        self._evicting = False
        self.wake()

    def unload(self) -> ServedModel:
        """Returns what it served with, for its engine to be closed."""
        served = self._served
        if served is None:
            raise self._refusal("be unloaded")
        self._served, self._evicting = None, False
        return served

    def renew(self, bundle: FoundBundle) -> None:
        """Take another bundle of the same name: the one that it serves by now, or else the one to load next."""
        self._check(self._bundle is not None and bundle.name == self._name, f"take a bundle of {bundle.name!r}")
        self._check(not self._removed, "take a bundle")
        self._bundle, self._retry_at = bundle, 0.0
        self._failure = bundle.problem if self._served is None else None

    def refuse_bundle(self, reason: str) -> None:
        """Keep why a reload was refused; a loaded model serves on."""
        self._check(not self._removed, "refuse a bundle")
        self._failure = reason

    def remove(self) -> ServedModel | None:
        """Returns what it served with, if it was loaded; requests that wait for it check again."""
        self._check(not self._removed, "be removed")
        self._removed = True
        served, self._served, self._evicting = self._served, None, False
        self.wake()
        return served

    def use(self, now: float) -> None:
        """A request has named the model; the least recently used one is evicted first."""
        self._last_used = now

    @contextmanager
    def planning_texts(self) -> Iterator[None]:
        """Around the tokenization of long texts in a thread: meanwhile the model is not idle."""
        self._planning += 1
        try:
            yield
        finally:
            self._planning -= 1

    async def wait(self, deadline: float | None, watch_client: WatchClient) -> None:
        """Wait for `wake`; raises the error given to it, DeadlineError, or CancelledError if the client disconnects."""
        loop = asyncio.get_running_loop()
        changed: asyncio.Future[None] = loop.create_future()
        watch = watch_client(partial(_settle, changed, CancelledError()))
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

    def _check(self, allowed: bool, what: str) -> None:
        if not allowed:
            raise self._refusal(what)

    def _refusal(self, what: str) -> ModelStateError:
        marks = (self.state, *(name for name in ("evicting", "removed") if getattr(self, name)))
        loads = "" if self._loading is None or self.state == "loading" else ", with a load under way,"
        return ModelStateError(f"The model {self._name!r} is {' and '.join(marks)}{loads} and cannot {what}.")


def _settle(changed: asyncio.Future[None], error: Exception | None) -> None:
    if not changed.done():
        changed.set_result(None) if error is None else changed.set_exception(error)
