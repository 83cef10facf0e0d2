"""Limits of each client: requests and tokens in any minute. All of it happens in the event loop.

A request is admitted while the minute before it has room for one more request and for at least one token. Its tokens
are known only when it has ended, so those under way may go over the limit; whoever comes next waits the longer.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from attendant.service.client_keys import ANY_NAME, NO_NAME, ClientLimit, key_names
from attendant.service.errors import RateLimitError
from attendant.service.http.guard.keys import Client
from attendant.service.http.guard.record import Record
from attendant.service.settings import Settings
from attendant.service.watch.client_metrics import LIMITS, ClientMetrics

REQUESTS, TOKENS = LIMITS
MINUTE = 60
KEPT = MINUTE + 1  # seconds: what came within a second is counted as one, and leaves when its last part is a minute old


class Window:
    """How much came in the last minute, to the second; it never counts less than was."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._seconds: deque[tuple[int, int]] = deque()  # when, and how much
        self._total = 0

    def add(self, now: float, amount: int) -> None:
        second = math.floor(now)
        self._total += amount
        if self._seconds and self._seconds[-1][0] == second:
            amount += self._seconds.pop()[1]
        self._seconds.append((second, amount))

    def wait(self, now: float) -> int:
        """Whole seconds until there is room for one more, 0 if there is."""
        while self._seconds and self._seconds[0][0] <= math.floor(now) - KEPT:
            self._total -= self._seconds.popleft()[1]
        rest, until = self._total, now
        for second, amount in self._seconds:
            if rest < self.limit:
                break
            rest, until = rest - amount, second + KEPT
        return math.ceil(until - now)


class Clients:
    """Admits requests by the limits of their client, and counts what they took."""

    def __init__(self, settings: Settings, metrics: ClientMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._clock = metrics, clock
        self._windows = _windows(settings)

    def admit(self, client: Client) -> None:
        """Count a request of this client, or refuse it: RateLimitError says when there will be room."""
        windows = self._windows.get(client.name)
        if windows is None:
            return
        now = self._clock()
        waits = {limit: window.wait(now) for limit, window in windows.items()}
        limit = max(waits, key=lambda each: waits[each])
        if wait := waits[limit]:
            self._metrics.limited(client.name, limit)
            whose = f"The client {client.name}" if client.name else "This key"
            most = windows[limit].limit
            raise RateLimitError(f"{whose} has taken its {most} {limit} of a minute; try again in {wait} s.", wait)
        if REQUESTS in windows:
            windows[REQUESTS].add(now, 1)

    def ended(self, record: Record) -> None:
        """Count a request that has ended, with the tokens of its line in the log."""
        name, fields = record.client.name, record.log_fields
        source, target = int(fields.get("source_tokens", 0)), int(fields.get("target_tokens", 0))
        self._metrics.request(name, record.outcome, source, target)
        tokens = self._windows.get(name, {}).get(TOKENS)
        if tokens is not None and source + target:
            tokens.add(self._clock(), source + target)


def _windows(settings: Settings) -> dict[str, dict[str, Window]]:
    """The windows of every name that has a limit, of its own or by `*`."""
    limits = {limit.name: limit for limit in settings.client_limits}
    others = limits.get(ANY_NAME, ClientLimit(ANY_NAME, 0, 0))
    found = {}
    for name in {*key_names((*settings.api_keys, *settings.admin_keys)), NO_NAME}:
        limit = limits.get(name, others)
        most = {REQUESTS: limit.requests, TOKENS: limit.tokens}
        if windows := {kind: Window(number) for kind, number in most.items() if number}:
            found[name] = windows
    return found
