"""What surrounds every request: its id, the key, the body's limits, and the one place where its outcome is counted."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import (
    CancelledError,
    NotFoundError,
    NotReadyError,
    QueueFullError,
    ServiceError,
    UnauthorizedError,
)
from service.http import page
from service.http.body import Body
from service.http.errors import BodyTimeoutError, ForbiddenError, HeadersTooLargeError, MethodNotAllowedError
from service.http.keys import Keys
from service.http.record import Record, Traffic
from service.logs import log_request
from service.metrics import Metrics
from service.requests.content import Json, encode, error_content, opaque_error
from service.settings import Settings

LARGEST_HEADERS = 64 * 2**10  # bytes, the path included
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
CLIENT_GONE = 499  # in the log only: there was nobody to answer
JSON_TYPE = (b"content-type", b"application/json")

log = logging.getLogger("attendant")

ErrorFormat = Callable[[str, ServiceError], tuple[int, Json]]  # (path, error) -> (status, body)


def native_error(_: str, error: ServiceError) -> tuple[int, Json]:
    return error.status, {"error": error_content(error)}


class Middleware:
    """The outermost middleware, but for tracing."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        metrics: Metrics,
        traffic: Traffic,
        error_format: ErrorFormat = native_error,
    ) -> None:
        self._app, self._metrics, self._traffic = app, metrics, traffic
        self._keys = Keys(settings)
        self._settings = settings
        self._error_format = error_format

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = scope["attendant.record"] = Record(scope)
        body = Body(scope, receive, self._settings.max_body_bytes, self._settings.body_seconds)
        send = _counted(record, send)
        self._traffic.active += 1
        try:
            _check_headers(scope)
            _check_path(record.path)
            self._keys.check(record.method, record.path, record.headers.get(b"authorization", b""))
            await body.read()
            await self._app(_with_json_body(scope), body, send)
        except (CancelledError, ClientDisconnect):
            record.outcome, record.status = "cancelled", record.status or CLIENT_GONE
        except ServiceError as error:
            await self._refuse(record, error, body, send)
        except Exception:
            log.exception("request %s failed", record.id)
            await self._refuse(record, opaque_error(record.id), body, send)
        except BaseException:  # the server was told to stop at once
            record.outcome, record.status = "cancelled", record.status or CLIENT_GONE
            raise
        finally:
            self._traffic.active -= 1
            self._end(record, body)

    async def _refuse(self, record: Record, error: ServiceError, body: Body, send: Send) -> None:
        record.fail(error)
        status, content = self._error_format(record.path, error)
        if record.status:  # the response has begun
            event = b"" if record.error_event is None else record.error_event(content)
            await send({"type": "http.response.body", "body": event})
            return
        encoded = encode(content) + b"\n"
        await send({"type": "http.response.start", "status": status, "headers": _headers(record.path, error, encoded)})
        await send({"type": "http.response.body", "body": encoded, "more_body": True})
        await body.drop()
        await send({"type": "http.response.body", "body": b""})

    def _end(self, record: Record, body: Body) -> None:
        seconds = time.monotonic() - record.arrival
        self._metrics.request(record.endpoint, record.outcome, seconds, record.model)
        if log.isEnabledFor(logging.INFO):
            fields = {
                "id": record.id,
                "method": record.method,
                "path": record.path[:200],
                "status": record.status,
                "outcome": record.outcome,
                "request_bytes": body.size,
                "answer_bytes": record.answer_bytes,
                "ms": round(seconds * 1000, 3),
                **({"model": record.model} if record.model else {}),
                **record.facts,
            }
            log_request(log, fields)


def _check_headers(scope: Scope) -> None:
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    if size + len(scope.get("raw_path") or b"") + len(scope["query_string"]) > LARGEST_HEADERS:
        raise HeadersTooLargeError(f"The headers are too large: at most {LARGEST_HEADERS} bytes are taken.")


def _check_path(path: str) -> None:
    """Refuse a path with a control character: routes ignore a line feed at its end, and `Keys` does not."""
    if CONTROL.search(path):
        raise NotFoundError(f"There is nothing at {path[:100]!a}; /docs lists what there is.")


def _with_json_body(scope: Scope) -> Scope:
    """Every body here is JSON, also one that `curl -d` calls a form; FastAPI goes by the Content-Type."""
    if JSON_TYPE not in scope["headers"]:
        scope["headers"] = [*(header for header in scope["headers"] if header[0] != b"content-type"), JSON_TYPE]
    return scope


def _headers(path: str, error: ServiceError, content: bytes) -> list[tuple[bytes, bytes]]:
    headers = [JSON_TYPE, (b"content-length", str(len(content)).encode())]
    if page.is_of_the_page(path):
        headers += [(name.encode(), value.encode()) for name, value in page.HEADERS.items()]
    if isinstance(error, QueueFullError):
        headers.append((b"retry-after", str(error.retry_after).encode()))
    if isinstance(error, UnauthorizedError) and not isinstance(error, ForbiddenError):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, MethodNotAllowedError):
        headers.append((b"allow", error.allow.encode()))
    if isinstance(
        error, BodyTimeoutError | NotReadyError
    ):  # behind a load balancer, the next connection may reach another server
        headers.append((b"connection", b"close"))
    return headers


def _counted(record: Record, send: Send) -> Send:
    """Wraps `send`: adds the request's id to the headers, and records the status and the bytes sent."""

    async def counted(message: Message) -> None:
        if message["type"] == "http.response.start":
            record.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", record.id.encode())]
        else:
            record.answer_bytes += len(message.get("body", b""))
        await send(message)

    return counted
