"""What the service tells Prometheus: every number has its name, its labels and its meaning here.

docs/metrics.md is the same as a table, and a test compares the two. The library's own instruments cost
microseconds a call and add a `_created` series each; these cost less, and a histogram takes many equal values at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, product
from threading import Lock

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

# Paths that requests are counted under; "other" is the page, the documents, the probes and whatever does not exist.
ENDPOINTS = (
    "/v1/generate",
    "/v1/next-token",
    "/v1/score",
    "/v1/explain",
    "/v1/completions",
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
WASTE = ("cancelled", "pruned")
RELOADS = ("ok", "refused")

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
# A small model's step takes less than a millisecond.
STEP_SECONDS = (0.0001, 0.0002, 0.0005, *SECONDS[:10])
ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
RATIO = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)

Labels = Mapping[str, Sequence[str]]  # each label's name, and all the values that it may have
NO_LABELS: Labels = {}


class Metrics:
    """All metrics of one service, on the registry that is given; every method may be called from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by_endpoint = {"endpoint": ENDPOINTS}
        self._requests = _Counter(
            "requests", "Requests answered, or left by their client.", {**by_endpoint, "outcome": OUTCOMES}
        )
        self._request_seconds = _Histogram(
            "request_seconds", "From a request's arrival to the end of its answer.", SECONDS, by_endpoint
        )
        self._queue_seconds = _Histogram("queue_seconds", "A text's wait before its source is encoded.", SECONDS)
        self._encode_seconds = _Histogram(
            "encode_seconds", "Encoding the sources that join a lane together.", STEP_SECONDS
        )
        self._first_token_seconds = _Histogram(
            "first_token_seconds", "From a text's admission to its first certain token.", SECONDS
        )
        self._inter_token_seconds = _Histogram(
            "inter_token_seconds", "Decoding time of each token of the finished texts.", STEP_SECONDS
        )
        self._step_seconds = _Histogram("step_seconds", "One step of a lane's decoder.", STEP_SECONDS)
        self._batch_rows = _Histogram("batch_rows", "Hypotheses that share a step of a lane.", ROWS)
        self._padding_ratio = _Histogram(
            "padding_ratio", "Share of a step's cross-attention that is computed on padding.", RATIO
        )
        self._source_tokens = _Counter("source_tokens", "Tokens of the sources that were encoded.")
        self._target_tokens = _Counter("target_tokens", "Tokens of the hypotheses that were answered.")
        self._wasted_tokens = _Counter("wasted_tokens", "Tokens that were decoded and not answered.", {"reason": WASTE})
        self._rejections = _Counter("queue_rejections", "Requests refused because the queue was full.")
        self._deadlines = _Counter("deadline_hits", "Texts whose deadline passed before they were done.")
        self._running = _Gauge("requests_running", "Texts in the decoder's batch.")
        self._waiting = _Gauge("requests_waiting", "Texts in the queue.")
        self._ready = _Gauge("ready", "1 if /readyz says so: loaded, certified, warm and not draining.")
        self._reloads = _Counter("reloads", "Bundles that were to replace the running one.", {"outcome": RELOADS})
        self._drift = _Gauge("certificate_drift", "Largest difference from the certificate's outputs.")
        self._tolerance = _Gauge("certificate_tolerance", "The drift above which a bundle is refused.")
        self._fallback = _Gauge("provider_fallback", "1 if CUDA was to be used and the CPU is.")
        self._rows_limit = _Gauge("batch_rows_limit", "Hypotheses that a step of a lane can hold.")
        self._queue_limit = _Gauge("queue_limit", "Texts that the queue can hold.")
        self._memory_limit = _Gauge("memory_limit_bytes", "Memory that the process may come to hold.")
        self._model = _Info("model_info", "The model that is served.", ("name", "precision", "provider"))
        self._build = _Info("build_info", "The running program.", ("version", "onnxruntime", "python"))
        self._registry = registry
        registry.register(self)
        ProcessCollector(registry=registry)

    def collect(self) -> Iterable[Metric]:
        """What a registry asks of a collector."""
        return [family.collect() for family in vars(self).values() if isinstance(family, _Family)]

    describe = collect

    def render(self) -> tuple[bytes, str]:
        """The body of /metrics and its content type."""
        return generate_latest(self._registry), "text/plain; version=0.0.4; charset=utf-8"

    # The engine calls these.

    def queue_seconds(self, seconds: float) -> None:
        self._queue_seconds.observe(seconds)

    def encode_seconds(self, seconds: float) -> None:
        self._encode_seconds.observe(seconds)

    def step(self, rows: int, seconds: float, padding: float) -> None:
        self._step_seconds.observe(seconds)
        self._batch_rows.observe(rows)
        self._padding_ratio.observe(padding)

    def first_token_seconds(self, seconds: float) -> None:
        self._first_token_seconds.observe(seconds)

    def inter_token_seconds(self, seconds: float, tokens: int) -> None:
        """`seconds` for each of a finished text's `tokens`."""
        self._inter_token_seconds.observe(seconds, times=tokens)

    def source_tokens(self, count: int) -> None:
        self._source_tokens.add(count)

    def target_tokens(self, count: int) -> None:
        self._target_tokens.add(count)

    def wasted_tokens(self, reason: str, count: int) -> None:
        self._wasted_tokens.add(count, reason)

    def rejected(self) -> None:
        self._rejections.add(1)

    def deadline(self) -> None:
        self._deadlines.add(1)

    def queue(self, running: int, waiting: int) -> None:
        self._running.set(running)
        self._waiting.set(waiting)

    def certificate_drift(self, value: float) -> None:
        self._drift.set(value)

    # Whoever starts the service calls these, at start and after a reload.

    def build_info(self, version: str, onnxruntime: str, python: str) -> None:
        self._build.set(version, onnxruntime, python)

    def model_info(self, name: str, precision: str, provider: str, fallback: bool, tolerance: float) -> None:
        self._model.set(name, precision, provider)
        self._fallback.set(fallback)
        self._tolerance.set(tolerance)

    def limits(self, rows: int, queue: int, memory: int) -> None:
        """Hypotheses in a step, texts in the queue, bytes of memory."""
        self._rows_limit.set(rows)
        self._queue_limit.set(queue)
        self._memory_limit.set(memory)

    def ready(self, ready: bool) -> None:
        self._ready.set(ready)

    def reload(self, outcome: str) -> None:
        self._reloads.add(1, outcome)

    # The HTTP layer calls this, once for each request.

    def request(self, endpoint: str, outcome: str, seconds: float) -> None:
        self._requests.add(1, endpoint, outcome)
        self._request_seconds.observe(seconds, endpoint)


class _Family:
    """A name with its labels; every combination of labels is there from the start, so that rates are right."""

    def __init__(self, name: str, meaning: str, labels: Labels) -> None:
        self.name, self.meaning, self.labels = f"attendant_{name}", meaning, tuple(labels)
        self.combinations = list(product(*labels.values()))
        self.lock = Lock()

    def refuse(self, labels: tuple[str, ...]) -> ValueError:
        return ValueError(f"{self.name} has no series for {labels}; its labels are {self.labels}.")

    def collect(self) -> Metric:
        raise NotImplementedError


class _Numbers(_Family):
    """A number for each combination of labels."""

    kind: type[CounterMetricFamily] | type[GaugeMetricFamily]

    def __init__(self, name: str, meaning: str, labels: Labels = NO_LABELS) -> None:
        super().__init__(name, meaning, labels)
        self.values = dict.fromkeys(self.combinations, 0.0)

    def collect(self) -> Metric:
        family = self.kind(self.name, self.meaning, labels=self.labels)
        with self.lock:
            values = dict(self.values)
        for labels, value in values.items():
            family.add_metric(labels, value)
        return family


class _Counter(_Numbers):
    kind = CounterMetricFamily

    def add(self, amount: int, *labels: str) -> None:
        if labels not in self.values:
            raise self.refuse(labels)
        if amount < 0:
            raise ValueError(f"{self.name} only grows, and was given {amount}.")
        with self.lock:
            self.values[labels] += amount


class _Gauge(_Numbers):
    kind = GaugeMetricFamily

    def set(self, value: float) -> None:
        with self.lock:
            self.values[()] = float(value)


class _Info(_Numbers):
    """One series of value 1, whose labels are the message; none before it is set."""

    kind = GaugeMetricFamily

    def __init__(self, name: str, meaning: str, labels: Sequence[str]) -> None:
        super().__init__(name, meaning, dict.fromkeys(labels, ()))

    def set(self, *labels: str) -> None:
        with self.lock:
            self.values = {labels: 1.0}


class _Histogram(_Family):
    """How many values lie up to each bound, and their sum."""

    def __init__(self, name: str, meaning: str, bounds: Sequence[float], labels: Labels = NO_LABELS) -> None:
        super().__init__(name, meaning, labels)
        self.bounds = bounds
        # Between each two bounds, above the last one, and the sum.
        self.rows: dict[tuple[str, ...], list[float]] = {key: [0.0] * (len(bounds) + 2) for key in self.combinations}

    def observe(self, value: float, *labels: str, times: int = 1) -> None:
        row = self.rows.get(labels)
        if row is None:
            raise self.refuse(labels)
        at = bisect_left(self.bounds, value)
        with self.lock:
            row[at] += times
            row[-1] += value * times

    def collect(self) -> Metric:
        family = HistogramMetricFamily(self.name, self.meaning, labels=self.labels)
        bounds = [*map(str, self.bounds), "+Inf"]
        for labels, row in self.rows.items():
            with self.lock:
                *counts, total = row
            family.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), total)
        return family
