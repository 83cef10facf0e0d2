"""Work in several threads at once, from which no error is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 120.0  # seconds, for threads that must end


@contextmanager
def threads_beside(count: int, work: Callable[[int], object]) -> Iterator[list[threading.Thread]]:
    """work(0), work(1), ... run in threads of their own beside the body, and end with it; what one raised is raised."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        until = time.monotonic() + PATIENCE
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        if errors:
            raise errors[0]
    assert not any(thread.is_alive() for thread in threads)


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """work(0), work(1), ..., each in a thread of its own, to the end."""
    with threads_beside(count, work):
        pass
