"""Every metric of the service, with its name, its labels and its meaning. docs/metrics.md is the same as a table.

`Metrics` defines all metrics and counts requests; `ModelMetrics`, one for each model, observes its engines, with every
labelled series looked up once. Levels (running, waiting, ready) are read at every scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

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

from attendant.service.engine.interface import EngineDescription, EngineInterface
from attendant.service.engine.observer import EngineObserver
from attendant.service.memory import MemoryAccount
from attendant.service.watch.client_metrics import ClientMetrics
from attendant.service.watch.container import ContainerCollector

# "ok", the `type` of the error that was answered, "cancelled": the client left first, or "unsent": during the answer.
OUTCOMES = (
    "ok",
    "invalid_json",
    "unauthorized",
    "not_found",
    "body_too_large",
    "invalid_field",
    "queue_full",
    "rate_limited",
    "not_ready",
    "deadline",
    "internal_error",
    "cancelled",
    "unsent",
)
NO_MODEL = ""  # the label of requests that need no model, or name an unknown one
WASTE_REASONS = ("cancelled", "pruned")
RELOAD_OUTCOMES = ("ok", "refused")
CACHE_HITS = ("finished", "in_flight")
LOAD_OUTCOMES = ("ok", "failed")
MODEL_STATES = ("loaded", "loading", "unloaded", "failed")

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
STEP_SECONDS = (0.0001, 0.0002, 0.0005, *SECONDS[:10])  # a small model's step takes less than a millisecond
LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """All metrics of one service, on the registry that is given."""

    def __init__(
        self,
        registry: CollectorRegistry,
        endpoints: Sequence[str] = (),
        model_endpoints: Sequence[str] = (),
        clients: Collection[str] = (),
    ) -> None:
        """`endpoints` are the values of that label; of `model_endpoints`, requests are counted by model and client too.

        `clients` are the names that keys have.
        """
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a `_created` series of each would double /metrics
        self._registry = registry
        ProcessCollector(registry=registry)
        self._requests_total = self._counter(
            "requests", "Requests answered, or left by their client.", "model", "endpoint", "outcome"
        )
        self._seconds = self._histogram(
            "request_seconds", "From a request's arrival to the end of its answer.", SECONDS, "model", "endpoint"
        )
        self._requests: dict[tuple[str, str, str], Counter] = {}
        self._request_seconds: dict[tuple[str, str], Histogram] = {}
        self._ready = self._gauge(
            "ready", "1 if /readyz says so: at least one model can serve, and it is not draining."
        )
        self.connections_refused = self._counter("connections_refused", "Connections over max_connections.")
        self.connections = self._gauge("connections", "Connections that are open.")
        self.event_loop_delay = self._histogram(
            "event_loop_delay_seconds", "How late the event loop comes to what is due.", SECONDS
        )
        self._memory_limit = self._gauge("memory_limit_bytes", "Memory that the process may come to hold.")
        self._models_memory = self._gauge("models_memory_bytes", "Memory set aside for models, at their most.")
        self._requests_memory = self._gauge("requests_memory_bytes", "Memory that requests hold, by estimate.")
        self._requests_memory_limit = self._gauge("requests_memory_limit_bytes", "Memory that requests may hold.")
        self._build = Info("attendant_build", "The running program.", registry=self._registry)
        self._define_engine()
        self._define_model()
        ContainerCollector(registry)
        self.clients = ClientMetrics(registry, clients, OUTCOMES)
        self._models: dict[str, ModelMetrics] = {}
        self._model_endpoints = model_endpoints
        self._add_requests(NO_MODEL, endpoints)

    def _define_engine(self) -> None:
        self.queue_seconds = self._histogram(
            "queue_seconds",
            "A text's wait for rows in a lane; its source may be encoded meanwhile.",
            SECONDS,
            "model",
        )
        self.encode_seconds = self._histogram("encode_seconds", "Encoding sources together.", STEP_SECONDS, "model")
        self.first_token_seconds = self._histogram(
            "first_token_seconds", "From a text's submission to its first token.", SECONDS, "model"
        )
        self.inter_token_seconds = self._histogram(
            "inter_token_seconds",
            "A finished text's decoding time per token, one value for each text.",
            STEP_SECONDS,
            "model",
        )
        self.step_seconds = self._histogram("step_seconds", "One step of a lane's decoder.", STEP_SECONDS, "model")
        self.batch_rows = self._histogram("batch_rows", "Hypotheses that share a step of a lane.", ROWS, "model")
        self.source_tokens = self._counter("source_tokens", "Tokens of the sources that were encoded.", "model")
        self.target_tokens = self._counter("target_tokens", "Tokens of the hypotheses that were answered.", "model")
        self.wasted_tokens = self._counter(
            "wasted_tokens", "Tokens that were decoded and not answered.", "model", "reason"
        )
        self.rejections = self._counter("queue_rejections", "Requests refused because the queue was full.", "model")
        self.deadlines = self._counter("deadline_hits", "Texts whose deadline passed before they were done.", "model")
        self.unknown_texts = self._counter(
            "unknown_texts", "Sources read with unknown tokens for what the vocabulary lacks.", "model"
        )
        self.failed_texts = self._counter(
            "failed_texts", "Texts without an answer in a request that was answered.", "model"
        )
        self.source_lengths = self._histogram("source_length_tokens", "Source tokens of a text.", LENGTHS, "model")
        self.target_lengths = self._histogram("target_length_tokens", "Tokens of a text's answer.", LENGTHS, "model")
        self.beam_sizes = self._histogram("beam_size", "Hypotheses that a text's search keeps.", ROWS, "model")
        self.cache_hits = self._counter(
            "cache_hits", "Texts that were not computed, since an equal one was.", "model", "kind"
        )
        self.cache_misses = self._counter("cache_misses", "Texts that had to be computed.", "model")

    def _define_model(self) -> None:
        self.loads = self._counter("model_loads", "Bundles that were loaded, or were to be.", "model", "outcome")
        self.reloads = self._counter("reloads", "Bundles that were to replace the running one.", "model", "outcome")
        self.state = self._gauge("model_state", "1 for the state that a model is in.", "model", "state")
        self.running = self._gauge("requests_running", "Texts being decoded.", "model")
        self.waiting = self._gauge("requests_waiting", "Texts in the queue.", "model")
        self.waiting_tokens = self._gauge("tokens_waiting", "Tokens that the texts in the queue may take.", "model")
        self.cache_bytes = self._gauge("cache_bytes", "Memory of the answers that are kept, about.", "model")
        self.drift = self._gauge("certificate_drift", "Largest difference from the certificate's outputs.", "model")
        self.tolerance = self._gauge("certificate_tolerance", "The drift above which a bundle is refused.", "model")
        self.fallback = self._gauge("provider_fallback", "1 if the CPU computes in place of CUDA.", "model")
        self.rows_limit = self._gauge("batch_rows_limit", "Hypotheses that a step of a lane can hold.", "model")
        self.queue_limit = self._gauge("queue_limit", "Texts that the queue can hold.", "model")
        self.queue_tokens_limit = self._gauge("queue_tokens_limit", "Tokens that the queue can hold.", "model")
        self.weights = self._gauge("model_weights_bytes", "Memory of a loaded model's weights, about.", "model")
        self.kv_caches = self._gauge("model_kv_caches_bytes", "Memory that its KV caches take at most.", "model")
        self.load_need = self._gauge("model_load_bytes", "Memory that the model's last load was to need.", "model")
        self.info = self._gauge("model_info", "A model that is loaded.", "model", "name", "precision", "provider")

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"attendant_{name}", meaning, labels, registry=self._registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"attendant_{name}", meaning, labels, registry=self._registry)

    def _histogram(self, name: str, meaning: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"attendant_{name}", meaning, labels, buckets=buckets, registry=self._registry)

    def _add_requests(self, model: str, endpoints: Sequence[str]) -> None:
        """Every series exists from the start, so that rates are right from the first scrape on."""
        for path in endpoints:
            self._request_seconds[model, path] = self._seconds.labels(model, path)
            for outcome in OUTCOMES:
                self._requests[model, path, outcome] = self._requests_total.labels(model, path, outcome)

    def model(self, name: str) -> ModelMetrics:
        """The metrics of a model; the first call for a name creates its series."""
        if name not in self._models:
            self._models[name] = ModelMetrics(self, name)
            self._add_requests(name, self._model_endpoints)
        return self._models[name]

    def render(self) -> tuple[bytes, str]:
        """The body of /metrics and its content type."""
        return generate_latest(self._registry), TEXT_FORMAT

    def request(self, endpoint: str, outcome: str, seconds: float, model: str = NO_MODEL) -> None:
        """One request has ended."""
        self._requests[model, endpoint, outcome].inc()
        self._request_seconds[model, endpoint].observe(seconds)

    def build_info(self, **versions: str) -> None:
        self._build.info(versions)

    def read_memory_from(self, account: MemoryAccount) -> None:
        """The account is read at every scrape."""
        self._models_memory.set_function(lambda: account.model_bytes)
        self._requests_memory.set_function(lambda: account.held)
        self._requests_memory_limit.set_function(lambda: account.capacity)

    def process(self, memory_limit: int, ready: Callable[[], bool]) -> None:
        """Set the memory limit; `ready` is called at every scrape."""
        self._memory_limit.set(memory_limit)
        self._ready.set_function(ready)


class ModelMetrics(EngineObserver):
    """The metrics of one model."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._name, self._metrics = name, metrics
        self._queue_seconds = metrics.queue_seconds.labels(name)
        self._encode_seconds = metrics.encode_seconds.labels(name)
        self._first_token_seconds = metrics.first_token_seconds.labels(name)
        self._inter_token_seconds = metrics.inter_token_seconds.labels(name)
        self._step_seconds = metrics.step_seconds.labels(name)
        self._batch_rows = metrics.batch_rows.labels(name)
        self._source_tokens = metrics.source_tokens.labels(name)
        self._target_tokens = metrics.target_tokens.labels(name)
        self._wasted_tokens = {reason: metrics.wasted_tokens.labels(name, reason) for reason in WASTE_REASONS}
        self._rejections = metrics.rejections.labels(name)
        self._deadlines = metrics.deadlines.labels(name)
        self._unknown_texts = metrics.unknown_texts.labels(name)
        self._failed_texts = metrics.failed_texts.labels(name)
        self._source_lengths = metrics.source_lengths.labels(name)
        self._target_lengths = metrics.target_lengths.labels(name)
        self._beam_sizes = metrics.beam_sizes.labels(name)
        self._cache_hits = {kind: metrics.cache_hits.labels(name, kind) for kind in CACHE_HITS}
        self._cache_misses = metrics.cache_misses.labels(name)
        self._loads = {outcome: metrics.loads.labels(name, outcome) for outcome in LOAD_OUTCOMES}
        self._reloads = {outcome: metrics.reloads.labels(name, outcome) for outcome in RELOAD_OUTCOMES}
        self._described: list[tuple[Gauge, tuple[str, ...]]] = []  # gauges of the loaded bundle, and their labels

    # The application calls these.

    def loaded(self, outcome: str) -> None:
        self._loads[outcome].inc()

    def read_unknown(self) -> None:
        """A source was read with unknown tokens."""
        self._unknown_texts.inc()

    def failed(self, texts: int) -> None:
        """Texts of a request that have no answer, where others have."""
        self._failed_texts.inc(texts)

    def asked(self, source_tokens: int, beam_size: int) -> None:
        """A text is about to be submitted."""
        self._source_lengths.observe(source_tokens)
        self._beam_sizes.observe(beam_size)

    def answered(self, target_tokens: int) -> None:
        self._target_lengths.observe(target_tokens)

    def loading(self, needed: int) -> None:
        """A load begins, for which so many bytes are needed."""
        self._metrics.load_need.labels(self._name).set(needed)

    def reloaded(self, outcome: str) -> None:
        self._reloads[outcome].inc()

    def read_levels_from(self, engines: Callable[[], Sequence[EngineInterface]], state: Callable[[], str]) -> None:
        """Functions to call at every scrape: the model's engines that still decode, and its state."""
        metrics, name = self._metrics, self._name
        metrics.load_need.labels(name)
        metrics.running.labels(name).set_function(lambda: sum(engine.count_running() for engine in engines()))
        metrics.waiting.labels(name).set_function(lambda: sum(engine.count_waiting() for engine in engines()))
        metrics.waiting_tokens.labels(name).set_function(
            lambda: sum(engine.count_waiting_tokens() for engine in engines())
        )
        metrics.cache_bytes.labels(name).set_function(lambda: sum(engine.count_cached_bytes() for engine in engines()))
        for known in MODEL_STATES:
            metrics.state.labels(name, known).set_function(partial(_is, state, known))

    def serving(self, description: EngineDescription) -> None:
        """Set the gauges of the bundle that serves from now on, and of its limits."""
        self.unloaded()
        metrics, name = self._metrics, self._name
        values = (
            (metrics.drift, description.certificate.drift),
            (metrics.tolerance, description.certificate.tolerance),
            (metrics.fallback, description.provider_fallback is not None),
            (metrics.weights, description.weight_bytes),
            (metrics.kv_caches, description.kv_cache_bytes),
            (metrics.rows_limit, description.max_rows),
            (metrics.queue_limit, description.max_queue_requests),
            (metrics.queue_tokens_limit, description.max_queue_tokens),
        )
        labels = (name, description.model, description.precision, description.provider)
        self._described = [(metrics.info, labels), *((gauge, (name,)) for gauge, _ in values)]
        metrics.info.labels(*labels).set(1)
        for gauge, value in values:
            gauge.labels(name).set(value)

    def unloaded(self) -> None:
        """Remove the gauges of the bundle that was loaded."""
        for gauge, labels in self._described:
            gauge.remove(*labels)
        self._described = []

    def removed(self) -> None:
        """The model no longer exists: remove its gauges; its counters stay."""
        self.unloaded()
        metrics, name = self._metrics, self._name
        for gauge, labels in (
            (metrics.running, (name,)),
            (metrics.waiting, (name,)),
            (metrics.waiting_tokens, (name,)),
            (metrics.cache_bytes, (name,)),
            (metrics.load_need, (name,)),
            *((metrics.state, (name, state)) for state in MODEL_STATES),
        ):
            gauge.remove(*labels)

    # The engine calls these: see EngineObserver.

    def queue_full(self) -> None:
        self._rejections.inc()

    def encoded(self, queue_seconds: list[float], source_tokens: int, seconds: float) -> None:
        if source_tokens:  # else every source was encoded while it waited in the queue
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

    def cache_hit(self, kind: str) -> None:
        self._cache_hits[kind].inc()

    def cache_missed(self) -> None:
        self._cache_misses.inc()


def _is(state: Callable[[], str], known: str) -> bool:
    return state() == known
