"""Records through the engine, in order and in constant memory.

A reader thread plans and submits records and puts them in a window of bounded size; whoever iterates takes them from it
in their order, each with its outcomes. So an answer is out as soon as it and those before it are done, even while the
reader waits for the next record.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from attendant.service.engine.collect import Outcomes, submit_when_room
from attendant.service.engine.interface import EngineInterface
from attendant.service.engine.tasks import Outcome
from attendant.service.errors import ServiceError
from attendant.service.requests.documents import SegmentTask

SUBMITTED_TOGETHER = 64  # segments of a text
BYTES_AHEAD = 64 * 2**20  # of records that were read and not answered

Record = TypeVar("Record")


@dataclass(eq=False)
class Item(Generic[Record]):
    """A record and, once it is done, its outcomes or its error."""

    record: Record
    size: int  # bytes that it holds
    work: Any = None  # the second value of its Plan
    error: ServiceError | None = None  # why it was not even submitted
    done: threading.Event = field(default_factory=threading.Event)
    _collected: Outcomes | None = None

    @property
    def outcomes(self) -> list[Outcome]:
        """Those of its tasks, in their order."""
        return [] if self._collected is None else self._collected.get()

    def submit(self, engine: EngineInterface, tasks: Sequence[SegmentTask], closed: threading.Event) -> None:
        self._collected = Outcomes(len(tasks), self.done.set)
        if not tasks:
            self.done.set()
        most = max(1, min(SUBMITTED_TOGETHER, engine.description.max_queue_requests))
        for first in range(0, len(tasks), most):
            callback = partial(self._collected.on_event, first=first)
            submit_when_room(engine, tasks[first : first + most], callback, None, closed)

    def fail(self, error: ServiceError) -> None:
        self.error = error
        self.done.set()


class Window(Generic[Record]):
    """A queue that is bounded in items and in bytes; one item always fits. `close` releases a waiting `put`."""

    def __init__(self, items: int, size: int) -> None:
        self._items, self._size = items, size
        self._queue: deque[Item[Record] | BaseException | None] = deque()
        self._held = 0  # bytes
        self._changed = threading.Condition()
        self.closed = threading.Event()

    def put(self, item: Item[Record] | BaseException | None) -> None:
        size = item.size if isinstance(item, Item) else 0
        with self._changed:
            self._changed.wait_for(lambda: self.closed.is_set() or self._fits(size))
            self._queue.append(item)
            self._held += size
            self._changed.notify_all()

    def _fits(self, size: int) -> bool:
        return not self._queue or (len(self._queue) < self._items and self._held + size <= self._size)

    def get(self) -> Item[Record] | BaseException | None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._queue))
            item = self._queue.popleft()
            self._held -= item.size if isinstance(item, Item) else 0
            self._changed.notify_all()
            return item

    def empty(self) -> bool:
        return not self._queue

    def close(self) -> None:
        with self._changed:
            self.closed.set()
            self._changed.notify_all()


Plan = Callable[[Record], tuple[Sequence[SegmentTask], Any]]  # tasks, and what to keep as Item.work; or ServiceError


def answered(
    engine: EngineInterface,
    records: Iterable[tuple[Record, int]],
    plan: Plan[Record],
    ahead: int,
    before_waiting: Callable[[], None] = lambda: None,
) -> Iterator[Item[Record]]:
    """Every record (given with its size in bytes) in order, with its outcomes or its error; `ahead` are read ahead.

    `before_waiting` is called each time before it may block, to flush output, say.
    """
    window: Window[Record] = Window(ahead, BYTES_AHEAD)
    reader = threading.Thread(target=_read, args=(engine, records, plan, window), name="reader", daemon=True)
    reader.start()  # a daemon, so that the process can end while it waits for a line
    try:
        while True:
            if window.empty():
                before_waiting()
            item = window.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                return
            if not item.done.is_set():
                before_waiting()
                item.done.wait()
            yield item
    finally:
        window.close()


def _read(
    engine: EngineInterface,
    records: Iterable[tuple[Record, int]],
    plan: Plan[Record],
    window: Window[Record],
) -> None:
    """Submit every record and put it in the window; an exception is put there too."""
    try:
        for record, size in records:
            item = Item(record, size)
            try:
                tasks, item.work = plan(record)
                item.submit(engine, tasks, window.closed)
            except ServiceError as error:
                item.fail(error)
            window.put(item)
            if window.closed.is_set():
                return
        window.put(None)
    except BaseException as error:  # raised by `answered`
        window.put(error)
