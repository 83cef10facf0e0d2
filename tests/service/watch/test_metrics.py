"""Each event is counted under the names of docs/metrics.md, levels are read when scraped, labels are closed sets."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from attendant.service import errors
from attendant.service.engine.interface import CertificateResult
from attendant.service.engine.observer import EngineObserver
from attendant.service.http.routes import ENDPOINTS, MODEL_ENDPOINTS
from attendant.service.watch.client_metrics import LIMITS, SIDES
from attendant.service.watch.metrics import (
    LOAD_OUTCOMES,
    MODEL_STATES,
    OUTCOMES,
    RELOAD_OUTCOMES,
    WASTE_REASONS,
    Metrics,
    ModelMetrics,
)
from tests.support.fake_engine import FakeEngine, make_bundle

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    return FakeEngine(make_bundle(tmp_path / "bundle", name="g2p"))


@pytest.fixture
def metrics(engine: FakeEngine) -> Metrics:
    found = Metrics(CollectorRegistry(), ENDPOINTS, MODEL_ENDPOINTS)
    found.build_info(version="1.2.3", onnxruntime="1.22", python="3.11")
    found.process(2**30, lambda: True)
    return found


@pytest.fixture
def model(metrics: Metrics, engine: FakeEngine) -> ModelMetrics:
    found = metrics.model("g2p")
    found.serving(engine.description)
    found.read_levels_from(lambda: [engine], lambda: "loaded")
    return found


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What a scrape finds: the value of each name with its label values."""
    families = text_string_to_metric_families(metrics.render()[0].decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(metrics: Metrics, metric: str, /, **labels: str) -> float | None:
    return samples(metrics).get((f"attendant_{metric}", frozenset(labels.items())))


G2P = {"model": "g2p"}
HISTOGRAMS: dict[str, Callable[[ModelMetrics, float], None]] = {
    "queue_seconds": lambda model, seconds: model.encoded([seconds], 1, 0.1),
    "encode_seconds": lambda model, seconds: model.encoded([0.1], 1, seconds),
    "first_token_seconds": ModelMetrics.first_token,
    "step_seconds": lambda model, seconds: model.stepped(4, seconds),
    "inter_token_seconds": lambda model, seconds: model.generated(1, 0, seconds),
}


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_seconds_are_counted_in_the_buckets_that_hold_them(name: str, metrics: Metrics, model: ModelMetrics) -> None:
    for seconds in (0.001, 0.0015, 1e9):
        HISTOGRAMS[name](model, seconds)
    assert value(metrics, f"{name}_bucket", le="0.001", **G2P) == 1  # a bucket holds its bound
    assert value(metrics, f"{name}_bucket", le="0.002", **G2P) == 2
    assert value(metrics, f"{name}_bucket", le="+Inf", **G2P) == 3
    assert value(metrics, f"{name}_count", **G2P) == 3
    assert value(metrics, f"{name}_sum", **G2P) == pytest.approx(1e9 + 0.0025)


def test_a_step_is_counted_with_its_rows(metrics: Metrics, model: ModelMetrics) -> None:
    model.stepped(rows=3, seconds=0.01)
    model.stepped(rows=64, seconds=0.01)
    assert value(metrics, "batch_rows_bucket", le="4.0", **G2P) == 1
    assert value(metrics, "batch_rows_sum", **G2P) == 67


def test_sources_that_are_encoded_together_are_timed_once_and_waited_each(
    metrics: Metrics, model: ModelMetrics
) -> None:
    model.encoded([0.1, 0.2, 0.3], source_tokens=30, seconds=0.01)
    assert value(metrics, "encode_seconds_count", **G2P) == 1
    assert value(metrics, "queue_seconds_count", **G2P) == 3
    assert value(metrics, "source_tokens_total", **G2P) == 30


def test_tokens_answered_pruned_and_cancelled_are_counted_apart(metrics: Metrics, model: ModelMetrics) -> None:
    model.generated(target_tokens=7, pruned_tokens=21, seconds_per_token=0.001)
    model.cancelled(wasted_tokens=5)
    assert value(metrics, "target_tokens_total", **G2P) == 7
    assert value(metrics, "wasted_tokens_total", reason="pruned", **G2P) == 21
    assert value(metrics, "wasted_tokens_total", reason="cancelled", **G2P) == 5


def test_rejections_and_deadlines_are_counted_apart(metrics: Metrics, model: ModelMetrics) -> None:
    model.queue_full()
    model.expired()
    model.expired()
    assert value(metrics, "queue_rejections_total", **G2P) == 1
    assert value(metrics, "deadline_hits_total", **G2P) == 2


def test_models_are_counted_apart(metrics: Metrics, model: ModelMetrics) -> None:
    other = metrics.model("other")
    other.stepped(rows=5, seconds=0.01)
    metrics.request("/v1/generate", "ok", 0.1, "other")
    assert (value(metrics, "batch_rows_count", **G2P), value(metrics, "batch_rows_count", model="other")) == (0, 1)
    for name, count in (("g2p", 0), ("other", 1), ("", 0)):
        assert value(metrics, "requests_total", model=name, endpoint="/v1/generate", outcome="ok") == count
    assert metrics.model("g2p") is model


def test_levels_are_those_at_the_time_of_the_scrape(metrics: Metrics, model: ModelMetrics) -> None:
    engines: list[Any] = []
    state, ready = ["loading"], [True]
    model.read_levels_from(lambda: engines, lambda: state[0])
    metrics.process(1, lambda: ready[0])
    assert (value(metrics, "requests_running", **G2P), value(metrics, "requests_waiting", **G2P)) == (0, 0)
    assert value(metrics, "model_state", state="loading", **G2P) == 1
    engines += [Level(running=3, waiting=5), Level(running=2, waiting=0)]  # one serves, one still finishes
    ready[0], state[0] = False, "loaded"
    assert (value(metrics, "requests_running", **G2P), value(metrics, "requests_waiting", **G2P)) == (5, 5)
    assert value(metrics, "tokens_waiting", **G2P) == 500
    assert [value(metrics, "model_state", state=each, **G2P) for each in MODEL_STATES] == [1, 0, 0, 0]
    assert value(metrics, "ready") == 0


class Level:
    def __init__(self, running: int, waiting: int) -> None:
        self.count_running, self.count_waiting = lambda: running, lambda: waiting
        self.count_cached_bytes, self.count_waiting_tokens = lambda: 0, lambda: 100 * waiting


INFO = {"precision": "fp32", "provider": "cpu", **G2P}


@pytest.mark.usefixtures("model")
def test_the_served_model_and_its_limits_are_told(metrics: Metrics, engine: FakeEngine) -> None:
    described = engine.description
    assert value(metrics, "model_info", name="g2p", **INFO) == 1
    assert value(metrics, "batch_rows_limit", **G2P) == described.max_rows
    assert value(metrics, "queue_limit", **G2P) == described.max_queue_requests
    assert value(metrics, "queue_tokens_limit", **G2P) == described.max_queue_tokens
    assert value(metrics, "memory_limit_bytes") == 2**30
    assert value(metrics, "certificate_drift", **G2P) == described.certificate.drift


def test_a_new_bundle_takes_the_place_of_the_old_one(metrics: Metrics, model: ModelMetrics, engine: FakeEngine) -> None:
    certificate = CertificateResult(drift=0.005, tolerance=0.01, samples=3)
    model.serving(replace(engine.description, model="v2", provider_fallback="no driver", certificate=certificate))
    assert value(metrics, "model_info", name="g2p", **INFO) is None
    assert value(metrics, "model_info", name="v2", **INFO) == 1
    assert value(metrics, "provider_fallback", **G2P) == 1
    assert value(metrics, "certificate_tolerance", **G2P) == 0.01


def test_nothing_is_told_of_the_bundle_of_an_unloaded_model(metrics: Metrics, model: ModelMetrics) -> None:
    model.unloaded()
    for name in ("certificate_drift", "certificate_tolerance", "provider_fallback", "batch_rows_limit", "queue_limit"):
        assert value(metrics, name, **G2P) is None
    assert value(metrics, "model_info", name="g2p", **INFO) is None
    assert value(metrics, "requests_running", **G2P) == 0


def test_the_levels_of_a_removed_model_end_and_what_was_counted_stays(metrics: Metrics, model: ModelMetrics) -> None:
    model.queue_full()
    model.removed()
    assert value(metrics, "requests_running", **G2P) is None
    assert value(metrics, "model_state", state="loaded", **G2P) is None
    assert value(metrics, "queue_rejections_total", **G2P) == 1


def test_a_name_with_odd_characters_is_escaped(metrics: Metrics) -> None:
    name = 'a "quoted" \\ name, é'
    metrics.model(name).queue_full()
    assert value(metrics, "queue_rejections_total", model=name) == 1


def test_the_build_is_told(metrics: Metrics) -> None:
    assert value(metrics, "build_info", version="1.2.3", onnxruntime="1.22", python="3.11") == 1


def test_loads_and_reloads_are_counted_by_outcome(metrics: Metrics, model: ModelMetrics) -> None:
    model.reloaded("refused")
    model.loaded("failed")
    assert value(metrics, "reloads_total", outcome="refused", **G2P) == 1
    assert value(metrics, "reloads_total", outcome="ok", **G2P) == 0
    assert value(metrics, "model_loads_total", outcome="failed", **G2P) == 1


def test_a_request_is_counted_once_with_its_time(metrics: Metrics) -> None:
    metrics.request("/v1/score", "invalid_field", 0.25)
    assert value(metrics, "requests_total", model="", endpoint="/v1/score", outcome="invalid_field") == 1
    assert value(metrics, "request_seconds_sum", model="", endpoint="/v1/score") == 0.25
    assert sum(number for (name, _), number in samples(metrics).items() if name == "attendant_requests_total") == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.request("/v1/generate?x=1", "ok", 0.1),
        lambda m: m.request("/v1/generate", "fine", 0.1),
        lambda m: m.request("/v1/generate", "ok", 0.1, "nothing of this name"),
        lambda m: m.model("g2p").reloaded("perhaps"),
    ],
)
@pytest.mark.usefixtures("model")
def test_a_label_outside_its_set_is_refused_and_nothing_is_counted(
    call: Callable[[Metrics], None], metrics: Metrics
) -> None:
    before = metrics.render()[0].decode()
    with pytest.raises(KeyError):
        call(metrics)
    assert without_process(metrics.render()[0].decode()) == without_process(before)


def without_process(body: str) -> list[str]:
    return [line for line in body.splitlines() if not re.search("process_|attendant_container_|attendant_cpu_", line)]


@pytest.mark.usefixtures("model")
def test_every_combination_of_labels_is_there_before_the_first_request(metrics: Metrics) -> None:
    found = samples(metrics)
    for model, endpoints in (("", ENDPOINTS), ("g2p", MODEL_ENDPOINTS)):
        for endpoint in endpoints:
            labels = {("model", model), ("endpoint", endpoint)}
            assert found["attendant_request_seconds_count", frozenset(labels)] == 0
            for outcome in OUTCOMES:
                assert found["attendant_requests_total", frozenset(labels | {("outcome", outcome)})] == 0


def test_the_outcomes_are_the_types_of_the_main_errors() -> None:
    main = [errors.ServiceError, *errors.ServiceError.__subclasses__()]  # what derives from one counts as that one
    assert {kind.type for kind in main} | {"ok", "cancelled", "unsent"} == set(OUTCOMES)


def test_all_that_an_engine_tells_is_counted() -> None:
    told = {name for name in vars(EngineObserver) if not name.startswith("_")}
    assert told <= set(vars(ModelMetrics))


def test_nothing_is_lost_between_threads(metrics: Metrics, model: ModelMetrics) -> None:
    def count(_: int) -> None:
        for _ in range(500):
            metrics.request("/v1/generate", "ok", 0.5, "g2p")
            model.stepped(8, 0.5)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(8)))
    assert value(metrics, "requests_total", endpoint="/v1/generate", outcome="ok", **G2P) == 4000
    assert value(metrics, "request_seconds_sum", endpoint="/v1/generate", **G2P) == 2000
    assert value(metrics, "batch_rows_count", **G2P) == 4000


def test_two_registries_know_nothing_of_each_other(model: ModelMetrics) -> None:
    other = Metrics(CollectorRegistry(), ENDPOINTS, MODEL_ENDPOINTS)
    other.model("g2p")
    model.queue_full()
    assert value(other, "queue_rejections_total", **G2P) == 0


def test_one_registry_holds_one_service_only() -> None:
    registry = CollectorRegistry()
    Metrics(registry, ENDPOINTS, MODEL_ENDPOINTS)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Metrics(registry, ENDPOINTS, MODEL_ENDPOINTS)


def test_the_body_is_prometheus_text_with_the_process_in_it(metrics: Metrics) -> None:
    body, content_type = metrics.render()
    assert content_type.startswith("text/plain; version=0.0.4")
    assert b"process_resident_memory_bytes" in body
    assert b"_created" not in body


def described() -> dict[str, tuple[str, set[str]]]:
    """The table of docs/metrics.md: type and labels of each name."""
    rows = {}
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[1] in ("counter", "gauge", "histogram"):
            rows[cells[0].strip("`")] = (cells[1], set(re.findall(r"`(\w+)`", cells[2])))
    return rows


@pytest.mark.usefixtures("model")
def test_the_table_in_the_docs_is_what_a_scrape_finds(metrics: Metrics) -> None:
    found = {}
    for family in text_string_to_metric_families(metrics.render()[0].decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        found[name] = (family.type, labels)
    assert described() == found


@pytest.mark.parametrize(
    ("label", "values"),
    [
        ("`endpoint`", ENDPOINTS),
        ("`outcome` of a request", OUTCOMES),
        ("`outcome` of a reload", RELOAD_OUTCOMES),
        ("`outcome` of a load", LOAD_OUTCOMES),
        ("`state`", MODEL_STATES),
        ("`reason`", WASTE_REASONS),
        ("`side`", SIDES),
        ("`limit`", LIMITS),
    ],
)
def test_the_labels_in_the_docs_are_the_closed_sets(label: str, values: tuple[str, ...]) -> None:
    line = next(line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {label} |"))
    assert tuple(re.findall(r"`([^`]+)`", line.removeprefix(f"| {label}"))) == values
