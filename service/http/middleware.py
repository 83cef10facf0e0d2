"""What surrounds every request: its id, the key, the body's limit, and the one place where its outcome is counted."""

from __future__ import annotations

import hmac
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import (
    BodyTooLargeError,
    CancelledError,
    NotFoundError,
    QueueFullError,
    ServiceError,
    UnauthorizedError,
)
from service.http.answers import Json, encode
from service.http.body import Body
from service.logs import log_request
from service.metrics import ENDPOINTS, OUTCOMES, Metrics
from service.settings import Settings

OPEN_PATHS = ("/healthz", "/readyz")
SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
LARGEST_HEADERS = 64 * 2**10  # bytes, the path included
CLIENT_GONE = 499  # in the log only: there was nobody to answer

log = logging.getLogger("attendant")

ErrorForm = Callable[[ServiceError], Json]


class MethodNotAllowedError(NotFoundError):
    status, type = 405, "method_not_allowed"

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class HeadersTooLargeError(BodyTooLargeError):
    status, type = 431, "headers_too_large"


class Record:
    """What is known of a request when it ends: for the metrics, and for its line in the log."""

    def __init__(self, scope: Scope) -> None:
        self.arrival = time.monotonic()
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.endpoint = self.path if self.path in ENDPOINTS else "other"
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.headers.get(b"x-request-id", b"")
        self.id = given.decode() if SANE_ID.fullmatch(given) else os.urandom(12).hex()
        self.status = 0
        self.outcome = "ok"
        self.answer_bytes = 0
        self.error_event: Callable[[Json], bytes] | None = None  # how an answer that has begun tells of an error
        self.facts: dict[str, Any] = {}  # sizes, timings; texts only where the settings ask for them

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


class Middleware:
    """The outermost layer. `error_forms` are the paths whose errors look otherwise."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        metrics: Metrics,
        traffic: Traffic,
        error_forms: Mapping[str, ErrorForm] | None = None,
    ) -> None:
        self._app, self._metrics, self._traffic = app, metrics, traffic
        self._keys = [key.encode() for key in settings.api_keys]
        self._limit = settings.max_body_bytes
        self._error_forms = error_forms or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = scope["attendant.record"] = Record(scope)
        body = Body(scope, receive, self._limit)
        answer = _counted(record, send)
        self._traffic.active += 1
        try:
            _check_headers(scope)
            self._authorize(record)
            body.check()
            await self._app(scope, body, answer)
        except (CancelledError, ClientDisconnect):
            record.outcome, record.status = "cancelled", record.status or CLIENT_GONE
        except ServiceError as error:
            await self._refuse(record, error, body, answer)
        except Exception:
            log.exception("request %s failed", record.id)
            await self._refuse(record, _opaque(record), body, answer)
        except BaseException:  # the server was told to stop at once
            record.outcome, record.status = "cancelled", record.status or CLIENT_GONE
            raise
        finally:
            self._traffic.active -= 1
            self._end(record, body)

    def _authorize(self, record: Record) -> None:
        if not self._keys or record.path in OPEN_PATHS:
            return
        scheme, _, given = record.headers.get(b"authorization", b"").partition(b" ")
        known = [hmac.compare_digest(given.strip(), key) for key in self._keys]
        if scheme.lower() != b"bearer" or not any(known):
            raise UnauthorizedError("The API key is missing or wrong; send the header Authorization: Bearer KEY.")

    async def _refuse(self, record: Record, error: ServiceError, body: Body, answer: Send) -> None:
        record.fail(error)
        form = self._error_forms.get(record.path, error_form)(error)
        if record.status:  # the answer has begun
            event = b"" if record.error_event is None else record.error_event(form)
            await answer({"type": "http.response.body", "body": event})
            return
        content = encode(form)
        await answer({"type": "http.response.start", "status": error.status, "headers": _headers(error, content)})
        await answer({"type": "http.response.body", "body": content, "more_body": True})
        await body.drop()
        await answer({"type": "http.response.body", "body": b""})

    def _end(self, record: Record, body: Body) -> None:
        seconds = time.monotonic() - record.arrival
        self._metrics.request(record.endpoint, record.outcome, seconds)
        if log.isEnabledFor(logging.INFO):
            fields = {
                "id": record.id, "method": record.method, "path": record.path[:200], "status": record.status,
                "outcome": record.outcome, "request_bytes": body.size, "answer_bytes": record.answer_bytes,
                "ms": round(seconds * 1000, 3), **record.facts,
            }  # fmt: skip
            log_request(log, fields)


def _check_headers(scope: Scope) -> None:
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    if size + len(scope.get("raw_path") or b"") + len(scope["query_string"]) > LARGEST_HEADERS:
        raise HeadersTooLargeError(f"The headers are too large: at most {LARGEST_HEADERS} bytes are taken.")


def error_form(error: ServiceError) -> Json:
    return {"error": {"type": error.type, "message": error.message, "field": error.field}}


def _opaque(record: Record) -> ServiceError:
    return ServiceError(f"Something went wrong in the service; its log tells more under request id {record.id}.")


def _headers(error: ServiceError, content: bytes) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if isinstance(error, QueueFullError):
        headers.append((b"retry-after", str(error.retry_after).encode()))
    if isinstance(error, UnauthorizedError):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, MethodNotAllowedError):
        headers.append((b"allow", error.allow.encode()))
    return headers


def _counted(record: Record, send: Send) -> Send:
    """`send`, which adds the request's id and keeps count."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            record.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", record.id.encode())]
        else:
            record.answer_bytes += len(message.get("body", b""))
        await send(message)

    return answer
