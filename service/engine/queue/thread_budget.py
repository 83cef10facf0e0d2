"""The thread budget: the engines of a process share its processors, so that several models do not multiply threads.

A lane takes threads for each iteration, as many as its graphs were loaded for. They are given in the order
in which they were asked for, so no model waits longer than one iteration of each lane before it. What takes longer
than an iteration computes beside them and takes none: lanes would wait for its end.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class ThreadBudget:
    def __init__(self, threads: int) -> None:
        self.threads = threads  # the most that compute at once, over all engines
        self._free = threads
        self._lock = threading.Lock()
        self._asked: deque[tuple[int, threading.Event]] = deque()
        self._beside = threading.Lock()

    @contextmanager
    def take(self, threads: int) -> Iterator[None]:
        """Wait until so many threads are free, or all if there are fewer, and hold them within the context."""
        threads = min(threads, self.threads)
        self._acquire(threads)
        try:
            yield
        finally:
            self._release(threads)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Compute for long, beside the lanes, within the context; one thread of all engines does at a time."""
        with self._beside:
            yield

    def _acquire(self, threads: int) -> None:
        with self._lock:
            if not self._asked and threads <= self._free:
                self._free -= threads
                return
            given = threading.Event()
            self._asked.append((threads, given))
        given.wait()

    def _release(self, threads: int) -> None:
        with self._lock:
            self._free += threads
            while self._asked and self._asked[0][0] <= self._free:
                wanted, given = self._asked.popleft()
                self._free -= wanted
                given.set()
