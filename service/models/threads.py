"""Calls that may hang, as on a mount that does not answer: each in a daemon thread of its own, and given up in time.

A thread cannot be ended. One that hangs is left alone: it keeps neither other calls waiting nor the process alive.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Discard = Callable[[Any], None]


class AbandonedError(Exception):
    """The call was not waited for any longer, or one of the same key still hangs."""


class Threads:
    def __init__(self, name: str) -> None:
        self._name = name
        self._pending: set[_Call] = set()
        self._abandoned: set[_Call] = set()  # and not returned

    @property
    def pending(self) -> list[asyncio.Future[Any]]:
        """What is waited for, of calls that have a key."""
        return [call.future for call in self._pending if call.key]

    @property
    def hanging(self) -> bool:
        """Whether a call that was abandoned has not returned."""
        return bool(self._abandoned)

    def hangs(self, key: str) -> bool:
        return any(call.key == key for call in list(self._abandoned))

    def give_up(self, error: Exception) -> None:
        """Abandon every call that has a key; whoever waits for one gets the error."""
        for call in [call for call in self._pending if call.key]:
            if call.abandon():
                call.future.set_exception(error)

    async def run(
        self, work: Callable[[], Any], key: str = "", seconds: float | None = None, discard: Discard = lambda _: None
    ) -> Any:
        """What `work` returns; AbandonedError if it takes longer than `seconds`, or if one of its key still hangs.

        What it returns after that is given to `discard`, in its own thread.
        """
        if key and self.hangs(key):
            raise AbandonedError
        call = _Call(work, key, discard, self._abandoned)
        self._pending.add(call)
        threading.Thread(target=call.run, name=self._name, daemon=True).start()
        try:
            done, _ = await asyncio.wait([call.future], timeout=seconds)
            if not done and call.abandon():
                raise AbandonedError
            return await call.future
        finally:
            self._pending.discard(call)
            call.abandon()  # if whoever waits was cancelled


class _Call:
    """Either it returns, and its future gets the result, or it is abandoned before, and the result is discarded."""

    def __init__(self, work: Callable[[], Any], key: str, discard: Discard, abandoned: set[_Call]) -> None:
        self.key, self._work, self._discard, self._abandoned = key, work, discard, abandoned
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self._loop.create_future()
        self._lock, self._returned = threading.Lock(), False

    def abandon(self) -> bool:
        """False if it has returned already."""
        with self._lock:
            if not self._returned:
                self._abandoned.add(self)
            return not self._returned

    def run(self) -> None:
        result, error = None, None
        try:
            result = self._work()
        except BaseException as found:
            error = found
        with self._lock:
            self._returned = True
            abandoned = self in self._abandoned
        if not abandoned:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._settle, result, error)
                return
        if error is None:
            self._discard(result)
        self._abandoned.discard(self)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        if self.future.done():  # whoever waited was cancelled at the last moment
            threading.Thread(target=self._discard, args=(result,), daemon=True).start()
        elif error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)
