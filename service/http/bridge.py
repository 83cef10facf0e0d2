"""Between asyncio, where requests are, and the engine's thread: ask and wait, or listen token by token."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any

from service.engine.interface import EngineInterface
from service.engine.tasks import Finished, Generate, NewTokens, Result, Task
from service.errors import CancelledError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
WATCH_AFTER = 0.01  # seconds; most answers are there before it pays to look whether the client still is


async def ask(engine: EngineInterface, tasks: Sequence[Task], deadline: float | None, receive: Receive) -> list[Result]:
    """The answers in the order of the tasks; the first failure cancels the rest and is raised.

    A client that leaves cancels all of them: CancelledError.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    found: dict[int, Result] = {}

    def settle(failure: Exception | None = None) -> None:
        if not done.done():
            done.set_result(None) if failure is None else done.set_exception(failure)

    def listen(event: NewTokens | Finished) -> None:
        if not isinstance(event, Finished):
            return
        if isinstance(event.answer, Exception):
            _tell(loop, settle, event.answer)
            return
        found[event.index] = event.answer
        if len(found) == len(tasks):
            _tell(loop, settle)

    ticket = engine.submit(tasks, listen, deadline)
    watch = _Watch(loop, receive, lambda: settle(CancelledError()))
    try:
        await done
    except BaseException:
        ticket.cancel()
        raise
    finally:
        watch.stop()
    return [found[index] for index in range(len(tasks))]


class Events:
    """What the engine tells of one streamed task. A refusal is raised at once, before an answer has begun."""

    def __init__(self, engine: EngineInterface, task: Generate, deadline: float | None, receive: Receive) -> None:
        loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[NewTokens | Result | Exception] = asyncio.Queue()
        put = self._queue.put_nowait

        def hear(event: NewTokens | Finished) -> None:
            _tell(loop, put, event.answer if isinstance(event, Finished) else event)

        self._ticket = engine.submit([task], hear, deadline)
        self._watch = _Watch(loop, receive, lambda: put(CancelledError()))

    async def get(self) -> NewTokens | Result:
        """Tokens as they become certain, then the answer; a client that leaves: CancelledError."""
        event = await self._queue.get()
        if isinstance(event, Exception):
            raise event
        return event

    def close(self) -> None:
        """Cancel the task, if it still runs; to be called however the stream ended."""
        self._watch.stop()
        self._ticket.cancel()


class _Watch:
    """Calls `gone` once the client has left, unless stopped before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, receive: Receive, gone: Callable[[], None]) -> None:
        self._receive, self._gone, self._loop = receive, gone, loop
        self._task: asyncio.Task[None] | None = None
        self._timer = loop.call_later(WATCH_AFTER, self._start)

    def _start(self) -> None:
        self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone()

    def stop(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody is there to hear
        loop.call_soon_threadsafe(call, *arguments)
