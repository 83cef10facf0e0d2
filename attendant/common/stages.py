"""Stages of long work: a line when each begins, with the time that those before took and what is left."""

from __future__ import annotations

import time


class Stages:
    """`costs`: by name and in order, what each takes, in any unit: the time left follows from the pace so far."""

    def __init__(self, what: str, costs: dict[str, float], shows: bool = True) -> None:
        self._what, self._costs, self._shows = what, costs, shows
        self._begun = time.monotonic()
        self._now: str | None = None

    def begin(self, name: str) -> None:
        """The stage before has ended, and this one begins; one that was not planned has no line."""
        if name == self._now or name not in self._costs:
            return
        self._now = name
        if not self._shows:
            return
        names = list(self._costs)
        number = names.index(name)
        done = sum(self._costs[other] for other in names[:number])
        left = sum(self._costs.values()) - done
        seconds = time.monotonic() - self._begun
        pace = f"; {_clock(seconds)} so far, about {_clock(seconds / done * left)} left" if done else ""
        print(f"{self._what}: {number + 1} of {len(names)}, {name}{pace}", flush=True)


def _clock(seconds: float) -> str:
    return f"{int(seconds // 3600)}:{int(seconds // 60 % 60):02d}:{int(seconds % 60):02d}"
