"""How far a long run is, on standard error: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Counts lines; if `total` is known, in the unit of `add`'s sizes, it also shows the time left."""

    def __init__(
        self,
        name: str,
        shows: bool,
        total: int | None = None,
        initial: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._total, self._initial, self._clock = name, total, initial, clock
        self._count = 0
        self._position = initial
        self._begun = self._last = clock()
        self._lines = shows and not sys.stderr.isatty()
        self._bar = tqdm(unit=f" {name}s", dynamic_ncols=True, disable=not shows or self._lines, leave=False)

    def add(self, size: int = 0) -> None:
        """One line more, of this size in the unit of the total."""
        self._count += 1
        self._position += size
        self._bar.update()
        now = self._clock()
        if now - self._last < SECONDS_BETWEEN_LINES:
            return
        self._last = now
        if self._lines:
            print(self.line(now), file=sys.stderr, flush=True)
        elif (left := self._left(now)) is not None:
            self._bar.set_postfix_str(left)

    def line(self, now: float) -> str:
        rate = self._count / max(now - self._begun, 1e-9)
        left = self._left(now)
        share = "" if left is None else f", {left}"
        return f"{self._count:,} {self._name}s, {rate:,.0f} {self._name}s/s{share}"

    def _left(self, now: float) -> str | None:
        """The share that is done, and the time left at the rate since the start of this process."""
        done = self._position - self._initial
        if not self._total or not done:
            return None
        seconds = (now - self._begun) * (self._total - self._position) / done
        return f"{100 * self._position / self._total:.1f} %, {timedelta(seconds=round(seconds))} left"

    def say(self, sentence: str) -> None:
        self._bar.write(sentence, file=sys.stderr)

    def close(self) -> None:
        self._bar.close()
