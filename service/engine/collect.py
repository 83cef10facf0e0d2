"""Submit tasks and collect their outcomes, whichever threads these come from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from attendant.service.engine.interface import EngineInterface, Submission
from attendant.service.engine.tasks import EventCallback, Finished, NewTokens, Outcome, Result, Task
from attendant.service.errors import NotReadyError, QueueFullError

RETRY_SECONDS = 0.01  # between two attempts to submit to a full queue


class Outcomes:
    """The outcomes of `count` tasks; `on_done` is called once, in the thread that the last comes in."""

    __slots__ = ("_count", "_found", "_on_done")

    def __init__(self, count: int, on_done: Callable[[], None] | None = None) -> None:
        self._count = count
        self._found: dict[int, Outcome] = {}
        self._on_done = [] if on_done is None else [on_done]

    def on_event(self, event: NewTokens | Finished, first: int = 0) -> None:
        """To be given to `submit`; `first` is the place of the submission's first task among all of them."""
        if isinstance(event, Finished):
            found = self._found
            found[first + event.index] = event.answer
            if len(found) == self._count:
                try:
                    on_done = self._on_done.pop()  # atomic: two threads may both see the last outcome
                except IndexError:
                    return
                on_done()

    def get(self) -> list[Outcome]:
        """In the order of the tasks; of one that has none yet, a NotReadyError."""
        found = self._found
        if len(found) < self._count:
            missing = NotReadyError("there is no outcome yet.")
            return [found.get(place, missing) for place in range(self._count)]
        return [found[place] for place in range(self._count)]

    def results(self) -> list[Result]:
        """In the order of the tasks; the first failure is raised."""
        results = []
        for outcome in self.get():
            if isinstance(outcome, Exception):
                raise outcome
            results.append(outcome)
        return results


def submit_when_room(
    engine: EngineInterface,
    tasks: Sequence[Task],
    on_event: EventCallback,
    deadline: float | None,
    closed: threading.Event,
) -> Submission:
    """Submit, waiting while the queue is full; QueueFullError only once `closed` is set."""
    while True:
        try:
            return engine.submit(tasks, on_event, deadline)
        except QueueFullError:
            if closed.wait(RETRY_SECONDS):
                raise
