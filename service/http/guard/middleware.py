"""What surrounds every request: its id, its errors, and the one place where its outcome is counted."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from attendant.service.errors import (
    CancelledError,
    NotReadyError,
    QueueFullError,
    RateLimitError,
    ServiceError,
    UnauthorizedError,
)
from attendant.service.http.errors import (
    BodyTimeoutError,
    ForbiddenError,
    InvalidHTTPError,
    MethodNotAllowedError,
    UnsupportedTransferError,
)
from attendant.service.http.guard.body import Body
from attendant.service.http.guard.clients import Clients
from attendant.service.http.guard.headers import check_headers
from attendant.service.http.guard.record import ANSWER_LEFT, WATCH_DISCONNECT, Record, Traffic
from attendant.service.memory import Holding, MemoryAccount
from attendant.service.requests.content import encode, opaque_error
from attendant.service.settings import Settings
from attendant.service.watch.logs import log_request
from attendant.service.watch.metrics import Metrics

CLIENT_GONE = 499  # in the log only: there was nobody to answer
# What ends the connection: framing that is in doubt; and behind a balancer the next one may reach another server.
CLOSING = BodyTimeoutError | InvalidHTTPError | NotReadyError | UnsupportedTransferError
JSON_TYPE = (b"content-type", b"application/json")
OF_CONNECTION = (ANSWER_LEFT, WATCH_DISCONNECT)  # what its connection puts into a request's scope

log = logging.getLogger("attendant")


class Middleware:
    """The outermost middleware, but for tracing."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        metrics: Metrics,
        traffic: Traffic,
        clients: Clients,
        memory: MemoryAccount,
        direct: Mapping[tuple[str, str], ASGIApp],
    ) -> None:
        """`direct` answers some methods and paths, guarded as all are, without the router's way to the same handler."""
        self._app, self._settings, self._metrics, self._traffic = app, settings, metrics, traffic
        self._direct = direct
        self._clients, self._memory = clients, memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = scope["attendant.record"] = Record(scope)
        memory = scope["attendant.memory"] = Holding(self._memory)
        body = Body(scope, receive, self._settings.max_body_bytes, self._settings.body_seconds, memory)
        scope["attendant.body"] = body  # read by the route, once it is known who may call it
        send = _counted(record, send)
        self._traffic.active += 1
        try:
            check_headers(scope)
            await self._direct.get((record.method, record.path), self._app)(_with_json_body(scope), body, send)
            if ANSWER_LEFT in scope and not await scope[ANSWER_LEFT]():
                record.outcome = "unsent"
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
            for name in (*OF_CONNECTION, "attendant.body"):  # they refer to the scope: only a collection would free it
                scope.pop(name, None)
            memory.close()
            self._traffic.active -= 1
            self._end(record, body)

    async def _refuse(self, record: Record, error: ServiceError, body: Body, send: Send) -> None:
        record.fail(error)
        status, content = record.policy.dialect.error_format(error)
        if record.status:  # the response has begun
            event = b"" if record.error_event is None else record.error_event(content)
            await send({"type": "http.response.body", "body": event})
            return
        encoded = encode(content) + b"\n"
        await send({"type": "http.response.start", "status": status, "headers": _headers(record, error, encoded)})
        await send({"type": "http.response.body", "body": encoded, "more_body": True})
        await body.drop()
        await send({"type": "http.response.body", "body": b""})

    def _end(self, record: Record, body: Body) -> None:
        record.mark("send")
        seconds = record.seconds
        self._metrics.request(record.policy.label, record.outcome, seconds, record.model)
        if record.policy.names_model:
            self._clients.ended(record)
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
                **({"client": record.client.name} if record.client.name else {}),
                **({"model": record.model} if record.model else {}),
                **record.log_fields,
                **(_phase_fields(record) if record.policy.names_model else {}),
            }
            log_request(log, fields)


def _phase_fields(record: Record) -> dict[str, float]:
    return {f"{phase}_ms": round(seconds * 1000, 3) for phase, seconds in record.phases.items()}


def _with_json_body(scope: Scope) -> Scope:
    """Every body here is JSON, also one that `curl -d` calls a form; FastAPI goes by the Content-Type."""
    if JSON_TYPE not in scope["headers"]:
        scope["headers"] = [*(header for header in scope["headers"] if header[0] != b"content-type"), JSON_TYPE]
    return scope


def _headers(record: Record, error: ServiceError, content: bytes) -> list[tuple[bytes, bytes]]:
    headers = [JSON_TYPE, (b"content-length", str(len(content)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in record.policy.headers.items()]
    if isinstance(error, QueueFullError | RateLimitError):
        headers.append((b"retry-after", str(error.retry_after).encode()))
    if isinstance(error, UnauthorizedError) and not isinstance(error, ForbiddenError):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, MethodNotAllowedError):
        headers.append((b"allow", error.allow.encode()))
    if isinstance(error, CLOSING):
        headers.append((b"connection", b"close"))
    return headers


def _counted(record: Record, send: Send) -> Send:
    """Wraps `send`: adds the request's id to the headers, and records the status and the bytes sent."""

    async def counted(message: Message) -> None:
        if message["type"] == "http.response.start":
            record.status = message["status"]
            if "loop" in record.phases:  # else a stream, which begins while it is decoded, or an error
                record.mark("answer")
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", record.id.encode())]
        else:
            record.answer_bytes += len(message.get("body", b""))
        await send(message)

    return counted
