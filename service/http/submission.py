"""Between the requests, in asyncio, and the engine's threads: submit and wait, or stream token by token."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import partial
from typing import Any

from attendant.service.engine.collect import Outcomes
from attendant.service.engine.interface import EngineInterface, Submission
from attendant.service.engine.tasks import EventCallback, Finished, NewTokens, Outcome, Result, Task
from attendant.service.errors import CancelledError, InvalidFieldError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
WATCH_AFTER = 0.01  # seconds; most answers are ready before it pays to watch for a disconnect


async def run_tasks(
    engine: EngineInterface,
    tasks: Sequence[Task],
    deadline: float | None,
    receive: Receive,
    field: str,
    client: str | None = None,
) -> list[Outcome]:
    """The outcome of every task, in their order; if every one failed, the first failure is raised.

    If the client leaves, all are cancelled: CancelledError. `field` is named in the error if the queue is too small;
    `client` is whoever asks.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(failure: Exception | None = None) -> None:
        if not done.done():
            done.set_result(None) if failure is None else done.set_exception(failure)

    outcomes = Outcomes(len(tasks), partial(_call_in, loop, settle))
    submission = _submit(engine, tasks, outcomes.on_event, deadline, field, client)
    watch = DisconnectWatch(loop, receive, lambda: settle(CancelledError()))
    try:
        await done
    except BaseException:
        submission.cancel()
        raise
    finally:
        watch.stop()
    return raise_if_all_failed(outcomes.get())


def raise_if_all_failed(outcomes: list[Outcome]) -> list[Outcome]:
    first = outcomes[0]
    if isinstance(first, Exception) and all(isinstance(outcome, Exception) for outcome in outcomes):
        raise first
    return outcomes


def raise_first_failure(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


class TaskStreams:
    """The events of tasks that are submitted together, on creation: a refusal is raised before the response begins."""

    def __init__(
        self,
        engine: EngineInterface,
        tasks: Sequence[Task],
        deadline: float | None,
        receive: Receive,
        field: str,
        client: str | None = None,
        on_outcome: Callable[[Sequence[Outcome]], None] = lambda _: None,
    ) -> None:
        """`on_outcome` is called with the outcome of each task, once that is asked for."""
        self._on_outcome = on_outcome
        loop = asyncio.get_running_loop()
        self._queues: list[asyncio.Queue[NewTokens | Outcome]] = [asyncio.Queue() for _ in tasks]

        def on_event(event: NewTokens | Finished) -> None:
            item = event.answer if isinstance(event, Finished) else event
            _call_in(loop, self._queues[event.index].put_nowait, item)

        self._submission = _submit(engine, tasks, on_event, deadline, field, client) if tasks else None
        self._watch = DisconnectWatch(loop, receive, self._on_disconnect)

    def _on_disconnect(self) -> None:
        for queue in self._queues:
            queue.put_nowait(CancelledError())

    async def next(self, index: int) -> NewTokens | Result:
        """Agreed tokens of a task, then its result; a failure, or a client that leaves, is raised."""
        item = await self._queues[index].get()
        if not isinstance(item, NewTokens):
            self._on_outcome([item])
        if isinstance(item, Exception):
            raise item
        return item

    def close(self) -> None:
        """Cancel what still runs; to be called however the stream ended."""
        self._watch.stop()
        if self._submission is not None:
            self._submission.cancel()


class DisconnectWatch:
    """Calls `on_disconnect` once the client has left, unless stopped before.

    Our own connections call it; of another server's, `receive` is awaited in a task.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, receive: Receive, on_disconnect: Callable[[], None]) -> None:
        self._task: asyncio.Task[None] | None = None
        watch = getattr(receive, "watch_disconnect", None)
        if watch is not None:
            self._end: Callable[[], None] = watch(on_disconnect)
            return
        self._receive, self._on_disconnect, self._loop = receive, on_disconnect, loop
        self._end = loop.call_later(WATCH_AFTER, self._start).cancel

    def _start(self) -> None:
        self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._on_disconnect()

    def stop(self) -> None:
        self._end()
        if self._task is not None:
            self._task.cancel()


def _submit(
    engine: EngineInterface,
    tasks: Sequence[Task],
    on_event: EventCallback,
    deadline: float | None,
    field: str,
    client: str | None,
) -> Submission:
    try:
        return engine.submit(tasks, on_event, deadline, client)
    except InvalidFieldError as error:  # larger than the whole queue
        raise InvalidFieldError(error.message, field) from None


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    try:  # noqa: SIM105, as it is done for every token
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        pass  # the loop is closed: the server has ended
