"""Calls of the Python API in asyncio: no call blocks the event loop, and none has a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from attendant.service.api.calls import Answer, Call
from attendant.service.api.results import Output, StreamedToken
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
        from attendant.service.requests.content import StreamedText

        call = self._plan()
        text = StreamedText(self._running.served)
        async with aclosing(_events(self._running, call)) as events:
            async for event in events:
                if isinstance(event, Exception):
                    raise event
                found: Any = event
                new = text.add(found) if isinstance(event, NewTokens) else text.finish(found.hypotheses[0])
                for token in new:
                    yield StreamedToken(**token)
        (self.output,) = call.answer([found])


async def _events(running: Running, call: Call[list[Output]]) -> AsyncGenerator[NewTokens | Outcome, None]:
    """Agreed tokens of a call with one task, then its outcome; leaving the iteration cancels the task."""
    from attendant.service.engine.tasks import Finished

    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[NewTokens | Finished] = asyncio.Queue()

    def on_event(event: NewTokens | Finished, first: int) -> None:  # noqa: ARG001, as of Outcomes
        _call_in(loop, queue.put_nowait, event)

    submission = await _submit_async(running, call.tasks[0], on_event, 0, deadline_of(call), call.field)
    try:
        while not isinstance(event := await queue.get(), Finished):
            yield event
        yield event.answer
    finally:
        submission.cancel()


async def _submit_async(
    running: Running, task: Task, on_event: Callable[..., None], place: int, until: float | None, field: str
) -> Submission:
    while (submitted := running.submit(task, on_event, place, until, field)) is None:
        await asyncio.sleep(WAIT_SECONDS)
    return submitted


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits
        loop.call_soon_threadsafe(call, *arguments)
