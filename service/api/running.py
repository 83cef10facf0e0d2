"""Calls of the Python API on an engine: submit, wait, cancel what is not wanted any more."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from attendant.service.api.calls import LIMITS, Answer, Call
from attendant.service.errors import InvalidFieldError, NotReadyError, QueueFullError

if TYPE_CHECKING:
    from attendant.service.engine.interface import Submission
    from attendant.service.engine.tasks import EventCallback, Task
    from attendant.service.requests.served import ServedModel

CLOSED = "The model is closed; make another one."
FORKED = (
    "This process was forked (os.fork) from the one that made the model, and a fork has none of the model's threads. "
    "Make the Model in the process that uses it, after the fork: in a worker's start with gunicorn --preload, in the "
    'worker\'s initializer with multiprocessing, or start workers with its "spawn" method.'
)
WAIT_SECONDS = 0.01  # between two attempts to submit to a full queue


class Running:
    """An engine that calls share, until it is closed; only in the process that made it."""

    def __init__(self, served: ServedModel) -> None:
        self.served = served
        self._closed = threading.Event()
        self._process = os.getpid()

    def close(self) -> None:
        """In a forked process there is nothing to stop: its copy of the engine has no threads."""
        if not self._closed.is_set():
            self._closed.set()
            if os.getpid() == self._process:
                self.served.engine.close()

    def check(self) -> None:
        """NotReadyError where no call can be answered."""
        if os.getpid() != self._process:
            raise NotReadyError(FORKED)
        if self._closed.is_set():
            raise NotReadyError(CLOSED)

    def run(self, call: Call[Answer]) -> Answer:
        """On an error it is raised, and tasks that still run are cancelled."""
        from attendant.service.engine.collect import Outcomes

        if not call.tasks:
            return call.answer([])
        done = threading.Event()
        outcomes = Outcomes(len(call.tasks), done.set)
        until = deadline_of(call)
        submissions: list[Submission] = []
        try:
            for place, task in enumerate(call.tasks):
                while (submitted := self.submit(task, outcomes.on_event, place, until, call.field)) is None:
                    self._closed.wait(WAIT_SECONDS)
                submissions.append(submitted)
            done.wait()
        except BaseException:
            cancel(submissions)
            raise
        return call.answer(outcomes.get())

    def submit(
        self, task: Task, on_event: Callable[..., None], place: int, until: float | None, field: str
    ) -> Submission | None:
        """Submit one task, or None while the queue is full: a call may have more texts than the queue holds."""
        self.check()
        callback: EventCallback = partial(on_event, first=place)
        try:
            return self.served.engine.submit([task], callback, until)
        except QueueFullError:
            return None
        except InvalidFieldError as error:  # larger than the whole queue
            raise InvalidFieldError(error.message, field) from None


def deadline_of(call: Call[Any]) -> float | None:
    from attendant.service.requests.planning import deadline

    return deadline(call.timeout_ms, time.monotonic(), LIMITS)


def cancel(submissions: list[Submission]) -> None:
    for submission in submissions:
        submission.cancel()
