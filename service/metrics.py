"""Every metric of the service, with its name, its labels and its meaning. docs/metrics.md is the same as a table.

`Metrics` is the engine's observer. Levels (running, waiting, ready) are read from the engines when they are scraped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from service.engine.interface import EngineDescription, EngineInterface
from service.engine.observer import EngineObserver

# Paths that requests are counted under; "other" is the page, the documents, the probes and whatever does not exist.
ENDPOINTS = (
    "/v1/generate",
    "/v1/next-token",
    "/v1/score",
    "/v1/explain",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/models",
    "/v1/info",
    "/v1/reload",
    "other",
)
# "ok", the `type` of the error that was answered, or "cancelled": the client left first.
OUTCOMES = (
    "ok",
    "invalid_json",
    "unauthorized",
    "not_found",
    "body_too_large",
    "invalid_field",
    "queue_full",
    "not_ready",
    "deadline",
    "internal_error",
    "cancelled",
)
WASTE_REASONS = ("cancelled", "pruned")
RELOAD_OUTCOMES = ("ok", "refused")

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
STEP_SECONDS = (0.0001, 0.0002, 0.0005, *SECONDS[:10])  # a small model's step takes less than a millisecond
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


class Metrics(EngineObserver):
    """All metrics of one service, on the registry that is given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a `_created` series of each would double /metrics
        self._registry = registry
        ProcessCollector(registry=registry)
        self._define_requests()
        self._define_engine()
        self._define_model()

    def _define_requests(self) -> None:
        requests = self._counter("requests", "Requests answered, or left by their client.", "endpoint", "outcome")
        seconds = self._histogram(
            "request_seconds", "From a request's arrival to the end of its answer.", SECONDS, "endpoint"
        )
        reloads = self._counter("reloads", "Bundles that were to replace the running one.", "outcome")
        # Every series exists from the start, so that rates are right from the first scrape on.
        self._requests = {(path, outcome): requests.labels(path, outcome) for path in ENDPOINTS for outcome in OUTCOMES}
        self._request_seconds = {path: seconds.labels(path) for path in ENDPOINTS}
        self._reloads = {outcome: reloads.labels(outcome) for outcome in RELOAD_OUTCOMES}

    def _define_engine(self) -> None:
        self._queue_seconds = self._histogram("queue_seconds", "A text's wait before its source is encoded.", SECONDS)
        self._encode_seconds = self._histogram(
            "encode_seconds", "Encoding the sources that join a lane together.", STEP_SECONDS
        )
        self._first_token_seconds = self._histogram(
            "first_token_seconds", "From a text's submission to its first token.", SECONDS
        )
        self._inter_token_seconds = self._histogram(
            "inter_token_seconds", "A finished text's decoding time per token, one value for each text.", STEP_SECONDS
        )
        self._step_seconds = self._histogram("step_seconds", "One step of a lane's decoder.", STEP_SECONDS)
        self._batch_rows = self._histogram("batch_rows", "Hypotheses that share a step of a lane.", ROWS)
        self._source_tokens = self._counter("source_tokens", "Tokens of the sources that were encoded.")
        self._target_tokens = self._counter("target_tokens", "Tokens of the hypotheses that were answered.")
        wasted = self._counter("wasted_tokens", "Tokens that were decoded and not answered.", "reason")
        self._wasted_tokens = {reason: wasted.labels(reason) for reason in WASTE_REASONS}
        self._rejections = self._counter("queue_rejections", "Requests refused because the queue was full.")
        self._deadlines = self._counter("deadline_hits", "Texts whose deadline passed before they were done.")

    def _define_model(self) -> None:
        self._running = self._gauge("requests_running", "Texts being decoded.")
        self._waiting = self._gauge("requests_waiting", "Texts in the queue.")
        self._ready = self._gauge("ready", "1 if /readyz says so: loaded, certified, warm and not draining.")
        self._drift = self._gauge("certificate_drift", "Largest difference from the certificate's outputs.")
        self._tolerance = self._gauge("certificate_tolerance", "The drift above which a bundle is refused.")
        self._fallback = self._gauge("provider_fallback", "1 if the CPU computes in place of CUDA.")
        self._rows_limit = self._gauge("batch_rows_limit", "Hypotheses that a step of a lane can hold.")
        self._queue_limit = self._gauge("queue_limit", "Texts that the queue can hold.")
        self._memory_limit = self._gauge("memory_limit_bytes", "Memory that the process may come to hold.")
        self._model = Info("attendant_model", "The model that is served.", registry=self._registry)
        self._build = Info("attendant_build", "The running program.", registry=self._registry)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"attendant_{name}", meaning, labels, registry=self._registry)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(f"attendant_{name}", meaning, registry=self._registry)

    def _histogram(self, name: str, meaning: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"attendant_{name}", meaning, labels, buckets=buckets, registry=self._registry)

    def render(self) -> tuple[bytes, str]:
        """The body of /metrics and its content type."""
        return generate_latest(self._registry), TEXT_FORMAT

    # The application calls these.

    def request(self, endpoint: str, outcome: str, seconds: float) -> None:
        """One request has ended."""
        self._requests[endpoint, outcome].inc()
        self._request_seconds[endpoint].observe(seconds)

    def reload(self, outcome: str) -> None:
        self._reloads[outcome].inc()

    def build_info(self, **versions: str) -> None:
        self._build.info(versions)

    def serving(self, description: EngineDescription, memory_limit: int) -> None:
        """The model that answers from now on, and its limits."""
        self._model.info(
            {"name": description.model, "precision": description.precision, "provider": description.provider}
        )
        self._drift.set(description.certificate.drift)
        self._tolerance.set(description.certificate.tolerance)
        self._fallback.set(description.provider_fallback is not None)
        self._rows_limit.set(description.max_rows)
        self._queue_limit.set(description.max_queue_requests)
        self._memory_limit.set(memory_limit)

    def read_levels_from(self, engines: Callable[[], Sequence[EngineInterface]], ready: Callable[[], bool]) -> None:
        """Whom to ask at every scrape: all engines that still decode, and whether the service is ready."""
        self._running.set_function(lambda: sum(engine.count_running() for engine in engines()))
        self._waiting.set_function(lambda: sum(engine.count_waiting() for engine in engines()))
        self._ready.set_function(ready)

    # The engine calls these: see EngineObserver.

    def queue_full(self) -> None:
        self._rejections.inc()

    def encoded(self, queue_seconds: list[float], source_tokens: int, seconds: float) -> None:
        self._encode_seconds.observe(seconds)
        self._source_tokens.inc(source_tokens)
        for waited in queue_seconds:
            self._queue_seconds.observe(waited)

    def stepped(self, rows: int, seconds: float) -> None:
        self._step_seconds.observe(seconds)
        self._batch_rows.observe(rows)

    def first_token(self, seconds: float) -> None:
        self._first_token_seconds.observe(seconds)

    def generated(self, target_tokens: int, pruned_tokens: int, seconds_per_token: float) -> None:
        self._target_tokens.inc(target_tokens)
        self._wasted_tokens["pruned"].inc(pruned_tokens)
        self._inter_token_seconds.observe(seconds_per_token)

    def cancelled(self, wasted_tokens: int) -> None:
        self._wasted_tokens["cancelled"].inc(wasted_tokens)

    def expired(self) -> None:
        self._deadlines.inc()
