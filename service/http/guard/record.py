"""What is known of a request when it ends: for the metrics, and for its line in the log."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

from attendant.service.errors import ServiceError
from attendant.service.http.guard.keys import NOBODY, Client
from attendant.service.http.guard.policy import NO_ROUTE, Policy
from attendant.service.http.guard.route_path import route_path
from attendant.service.watch.metrics import NO_MODEL, OUTCOMES

ANSWER_LEFT = "attendant.answer_left"  # in a scope: waits until the answer has left; whether it has
WATCH_DISCONNECT = (
    "attendant.watch_disconnect"  # in a scope: takes what to call once the client has left; ends the watch
)
SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
ID_BITS = 96
_random = random.Random()  # for ids: asking the system for each would release the GIL
TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


def new_id() -> str:
    """Of a request that brings none."""
    return f"{_random.getrandbits(ID_BITS):024x}"


class Record:
    def __init__(self, scope: Scope) -> None:
        self.arrival = self._marked = time.monotonic()
        self.phases: dict[str, float] = {}  # seconds of each, one after the other since the arrival
        self.method: str = scope["method"]
        self.path = route_path(scope)
        self.policy: Policy = NO_ROUTE  # of the route, once one is matched
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.headers.get(b"x-request-id", b"")
        self.id = given.decode() if SANE_ID.fullmatch(given) else new_id()
        self.client: Client = NOBODY  # once its key is checked
        self.model = NO_MODEL  # the requested model's name, once it is known to exist
        self.status = 0  # 0: the response has not begun
        self.outcome = "ok"
        self.answer_bytes = 0
        self.error_event: Callable[[dict[str, Any]], bytes] | None = (
            None  # formats an error for a response that has begun
        )
        self.log_fields: dict[str, Any] = self._trace(
            scope
        )  # sizes, timings; texts only where the settings ask for them

    @property
    def seconds(self) -> float:
        """From its arrival to the end of the last phase."""
        return self._marked - self.arrival

    def mark(self, phase: str) -> float:
        """A phase has ended that began where the last one ended; its seconds."""
        now = time.monotonic()
        seconds, self._marked = now - self._marked, now
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds
        return seconds

    def _trace(self, scope: Scope) -> dict[str, Any]:
        """Ids of its trace: from our tracing if that is on, else from the W3C header `traceparent`."""
        header = self.headers.get(b"traceparent")
        if header is None or "attendant.trace" in scope:
            return dict(scope.get("attendant.trace", ()))
        found = TRACEPARENT.fullmatch(header)
        return {} if found is None else {"trace_id": found[1].decode(), "parent_id": found[2].decode()}

    def fail(self, error: ServiceError) -> None:
        """Count it as this error; a type that the metrics do not know counts as its parent's."""
        types = [getattr(kind, "type", "") for kind in type(error).__mro__]
        self.outcome = next(name for name in types if name in OUTCOMES)


def record_of(scope: Scope) -> Record:
    record: Record = scope["attendant.record"]
    return record


@dataclass
class Traffic:
    active: int = 0  # requests that are not answered yet
