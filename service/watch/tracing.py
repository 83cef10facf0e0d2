"""Spans through OpenTelemetry: a request, and the queue, encode and decode of each of its texts.

Imported only where tracing is on. The engine knows nothing of it: its results carry their timing, and spans are made
from that when the request has ended, in the event loop. Sampling and export are configured by OpenTelemetry's own
variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, ...).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, format_span_id, format_trace_id
from opentelemetry.trace.propagation import set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from attendant.service.engine.interface import Submission, WrappedEngine
from attendant.service.engine.tasks import (
    EventCallback,
    Explained,
    Finished,
    Generated,
    NewTokens,
    Result,
    Task,
    Timing,
)
from attendant.service.http.guard.record import record_of
from attendant.service.models.model import LoadEngine

Attributes = dict[str, AttributeValue]
PHASES = ("queue", "encode", "decode")
HEADERS = (b"traceparent", b"tracestate")
SHUTDOWN_SECONDS = 3.0  # for the last spans to be exported
SECOND = 10**9  # nanoseconds


@dataclass
class RequestTrace:
    """Outcomes of one request's tasks, each with the time of its submission in Unix nanoseconds."""

    results: list[tuple[int, int, Task, Result | Exception]] = field(default_factory=list)  # submitted, index, ...


_current: ContextVar[RequestTrace | None] = ContextVar("request_trace", default=None)


class TracedEngine(WrappedEngine):
    """An engine whose results are noted in the trace of the request that asked for them."""

    def submit(
        self, tasks: Sequence[Task], on_event: EventCallback, deadline: float | None = None, client: str | None = None
    ) -> Submission:
        trace, submitted = _current.get(), time.time_ns()
        if trace is None:
            return self._engine.submit(tasks, on_event, deadline, client)

        def noting(event: NewTokens | Finished) -> None:
            if isinstance(event, Finished):
                trace.results.append((submitted, event.index, tasks[event.index], event.answer))
            on_event(event)

        return self._engine.submit(tasks, noting, deadline, client)


class TracingMiddleware:
    """The outermost middleware: a span for each request, a child of the one that `traceparent` names."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app, self._tracer = app, tracer
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        span = self._start(scope)
        context = span.get_span_context()
        scope["attendant.trace"] = {
            "trace_id": format_trace_id(context.trace_id),
            "span_id": format_span_id(context.span_id),
        }
        trace = RequestTrace() if span.is_recording() else None
        token = _current.set(trace)

        async def watching(message: Message) -> None:
            if message["type"] == "http.response.start":
                span.set_attribute("http.response.status_code", message["status"])
                if message["status"] >= 500:
                    span.set_status(Status(StatusCode.ERROR))
            await send(message)

        try:
            await self._app(scope, receive, watching)
        finally:
            _current.reset(token)
            if trace is not None:
                self._finish(span, scope, trace)
            span.end()

    def _start(self, scope: Scope) -> Span:
        carrier = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in HEADERS}
        attributes = {"http.request.method": scope["method"], "url.path": scope["path"][:200]}
        parent = self._propagator.extract(carrier)
        return self._tracer.start_span(scope["method"], parent, kind=SpanKind.SERVER, attributes=attributes)

    def _finish(self, span: Span, scope: Scope, trace: RequestTrace) -> None:
        record, route = record_of(scope), scope.get("route")
        if route is not None:
            span.update_name(f"{scope['method']} {route.path}")
            span.set_attribute("http.route", route.path)
        span.set_attributes({"attendant.request_id": record.id, "attendant.outcome": record.outcome})
        inside = set_span_in_context(span)
        for submitted, index, task, answer in list(trace.results):
            if isinstance(answer, Exception):
                attributes: Attributes = {"attendant.input": index, "error.type": type(answer).__name__}
                span.add_event("failed", attributes)
                continue
            attributes = {"attendant.input": index, "attendant.source_tokens": len(task.source)}
            if isinstance(answer, Explained):
                answer = answer.found
            if isinstance(answer, Generated):
                attributes["attendant.target_tokens"] = sum(len(each.logprobs) for each in answer.hypotheses)
            for name, start, end in _phases(submitted, answer.timing):
                self._tracer.start_span(name, inside, attributes=attributes, start_time=start).end(end)


def _phases(start: int, timing: Timing) -> Iterator[tuple[str, int, int]]:
    """Each phase with its beginning and its end, one after the other."""
    for name in PHASES:
        end = start + int(getattr(timing, name) * SECOND)
        yield name, start, end
        start = end


class Tracing:
    """The tracer of an application, and the wrapper of its engines."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._provider = provider or _make_provider()
        self.tracer = self._provider.get_tracer("attendant")

    def loader(self, load: LoadEngine) -> LoadEngine:
        """Wraps `load`, so that its engines are traced."""
        return lambda directory: TracedEngine(load(directory))

    def close(self) -> None:
        """Send what is left; a collector that does not answer keeps the process no longer than SHUTDOWN_SECONDS."""
        thread = threading.Thread(target=self._provider.shutdown, daemon=True)
        thread.start()
        thread.join(SHUTDOWN_SECONDS)


def _make_provider() -> TracerProvider:
    """Exports spans in batches over OTLP, as configured by OpenTelemetry's own variables."""
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(resource=Resource.create({} if named else {"service.name": "attendant"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
