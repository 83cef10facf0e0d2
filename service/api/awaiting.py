"""Calls of the Python API in asyncio: no call blocks the event loop, and none has a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from attendant.service.api.calls import Answer, Call
from attendant.service.api.results import Output, StreamedToken, streamed_token
from attendant.service.api.running import WAIT_SECONDS, Running, cancel, deadline_of

if TYPE_CHECKING:
    from attendant.service.engine.interface import Submission
    from attendant.service.engine.tasks import Finished, NewTokens, Outcome, Task


async def run_async(running: Running, plan: Callable[[], Call[Answer]], *, in_thread: bool) -> Answer:
    """As Running.run; cancelling the awaiting task cancels the engine's tasks.

    `in_thread`: planning and answering take long enough to be done in a thread.
    """
    from attendant.service.engine.collect import Outcomes

    call = await asyncio.to_thread(plan) if in_thread else plan()
    if not call.tasks:
        return call.answer([])
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    outcomes = Outcomes(len(call.tasks), partial(_call_in, loop, done.set))
    until = deadline_of(call)
    submissions: list[Submission] = []
    try:
        for place, task in enumerate(call.tasks):
            submissions.append(await _submit_async(running, task, outcomes.on_event, place, until, call.field))
        await done.wait()
    except BaseException:
        cancel(submissions)
        raise
    found = outcomes.get()
    return await asyncio.to_thread(call.answer, found) if in_thread else call.answer(found)


class TokenStream:
    """Tokens of one answer as they are agreed on: `async for token in stream`; then `output` has the whole answer."""

    def __init__(self, running: Running, plan: Callable[[], Call[list[Output]]]) -> None:
        self._running, self._plan = running, plan
        self.output: Output | None = None  # until the last token has come

    async def __aiter__(self) -> AsyncIterator[StreamedToken]:
        from attendant.service.engine.tasks import NewTokens
        from attendant.service.requests.streamed import StreamedDocument

        call = self._plan()
        assert call.plan is not None
        text = StreamedDocument(self._running.served, call.plan)
        outcomes: list[Any] = []
        async with aclosing(_events(self._running, call)) as events:
            for event in text.begin() if call.tasks else ():
                yield streamed_token(event)
            async for found in events:
                if isinstance(found, Exception):
                    raise found
                if isinstance(found, NewTokens):
                    for event in text.add(found):
                        yield streamed_token(event)
                    continue
                outcomes.append(found)
                begin = text.begin() if len(outcomes) < len(call.tasks) else ()
                for event in chain(text.finish(found), begin):
                    yield streamed_token(event)
        for event in text.end():
            yield streamed_token(event)
        (self.output,) = call.answer(outcomes)


async def _events(running: Running, call: Call[list[Output]]) -> AsyncGenerator[NewTokens | Outcome, None]:
    """Of each task in turn its agreed tokens, then its outcome; leaving the iteration cancels all of them."""
    from attendant.service.engine.tasks import Finished

    loop = asyncio.get_running_loop()
    queues: list[asyncio.Queue[NewTokens | Finished]] = [asyncio.Queue() for _ in call.tasks]
    until = deadline_of(call)

    def on_event(event: NewTokens | Finished, first: int) -> None:
        _call_in(loop, queues[first].put_nowait, event)

    submissions: list[Submission] = []

    async def submit() -> None:
        for place, task in enumerate(call.tasks):
            submissions.append(await _submit_async(running, task, on_event, place, until, call.field))

    submitting = asyncio.create_task(submit())  # a text may have more segments than the queue holds
    submitting.add_done_callback(partial(_pass_failure, queues))
    try:
        for queue in queues:
            while not isinstance(event := await queue.get(), Finished):
                yield event
            yield event.answer
    finally:
        submitting.cancel()
        cancel(submissions)


def _pass_failure(queues: list[asyncio.Queue[NewTokens | Finished]], submitting: asyncio.Task[None]) -> None:
    """What could not be submitted is the outcome of every task that has none."""
    from attendant.service.engine.tasks import Finished

    error = None if submitting.cancelled() else submitting.exception()
    if isinstance(error, Exception):
        for place, queue in enumerate(queues):
            queue.put_nowait(Finished(place, error))


async def _submit_async(
    running: Running, task: Task, on_event: Callable[..., None], place: int, until: float | None, field: str
) -> Submission:
    while (submitted := running.submit(task, on_event, place, until, field)) is None:
        await asyncio.sleep(WAIT_SECONDS)
    return submitted


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits
        loop.call_soon_threadsafe(call, *arguments)
