"""What is known of a request when it ends: for the metrics, and for its line in the log."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette._utils import get_route_path  # the router's own
from starlette.types import Scope

from service.errors import ServiceError
from service.metrics import ENDPOINTS, NO_MODEL, OUTCOMES

SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
ID_BITS = 96
_random = random.Random()  # for ids: asking the system for each would release the GIL
MODEL_PATH, INFER_PATH = re.compile("/v1/models/"), re.compile("/v2/models/[^/]+/infer")
TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


class Record:
    def __init__(self, scope: Scope) -> None:
        self.arrival = time.monotonic()
        self.method: str = scope["method"]
        self.path = get_route_path(scope)  # below a root path, as the router sees it: keys go by it
        self.endpoint = endpoint_of(self.path)
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.headers.get(b"x-request-id", b"")
        self.id = given.decode() if SANE_ID.fullmatch(given) else f"{_random.getrandbits(ID_BITS):024x}"
        self.model = NO_MODEL  # the requested model's name, once it is known to exist
        self.status = 0  # 0: the response has not begun
        self.outcome = "ok"
        self.answer_bytes = 0
        self.error_event: Callable[[dict[str, Any]], bytes] | None = (
            None  # formats an error for a response that has begun
        )
        self.facts: dict[str, Any] = self._trace(scope)  # sizes, timings; texts only where the settings ask for them

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


def endpoint_of(path: str) -> str:
    """The label of a path in the metrics: without the model's name, or `other`."""
    if MODEL_PATH.match(path):
        return "/v1/models"
    if INFER_PATH.fullmatch(path):
        return "/v2/models/{name}/infer"
    return path if path in ENDPOINTS else "other"


def record_of(scope: Scope) -> Record:
    record: Record = scope["attendant.record"]
    return record


@dataclass
class Traffic:
    active: int = 0  # requests that are not answered yet
