"""How many tokens a second leave the engine, for Retry-After."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 10.0
MIN_RELEASES = 16  # the least that are kept, however old: slow models release jobs seldom, and lanes several at once


class Throughput:
    """Tokens a second over the last WINDOW_SECONDS, not counting the time for which it was paused.

    It is a total over a time, not a mean of rates between releases: when lanes release jobs close together, the rates
    between two releases have no bound.
    """

    def __init__(self) -> None:
        self._releases: deque[tuple[float, int]] = deque()  # (running time, tokens)
        self._tokens = 0  # in the window
        self._start = 0.0  # running time at which the window begins
        self._before = 0.0  # running time up to the last pause
        self._resumed: float | None = None

    def resume(self, now: float) -> None:
        if self._resumed is None:
            self._resumed = now

    def pause(self, now: float) -> None:
        self._before, self._resumed = self._running_time(now), None

    def add(self, tokens: int, now: float) -> None:
        """Count tokens of released jobs; those released during a pause do not count."""
        if self._resumed is None:
            return
        time = self._running_time(now)
        self._releases.append((time, tokens))
        self._tokens += tokens
        while len(self._releases) > MIN_RELEASES and self._releases[0][0] < time - WINDOW_SECONDS:
            self._start, dropped = self._releases.popleft()
            self._tokens -= dropped

    def rate(self, now: float) -> float:
        """Tokens a second; 0 if nothing is known yet."""
        seconds = self._running_time(now) - self._start
        return self._tokens / seconds if seconds > 0 else 0.0

    def _running_time(self, now: float) -> float:
        return self._before if self._resumed is None else self._before + now - self._resumed
