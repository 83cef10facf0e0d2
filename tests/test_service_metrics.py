"""Each method counts what it says, under the names of docs/metrics.md, and nothing else becomes a label."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from service import errors
from service.metrics import ENDPOINTS, OUTCOMES, RELOADS, WASTE, Metrics

DOCUMENT = Path(__file__).parent.parent / "docs" / "metrics.md"


@pytest.fixture
def metrics() -> Metrics:
    found = Metrics(CollectorRegistry())
    found.model_info("g2p", "int8", "cpu", fallback=False, tolerance=0.5)
    found.build_info("0.1.0", "1.22", "3.11")
    return found


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What a scrape finds: the value of each name with its label values."""
    families = text_string_to_metric_families(metrics.render()[0].decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(metrics: Metrics, metric: str, /, **labels: str) -> float | None:
    return samples(metrics).get((f"attendant_{metric}", frozenset(labels.items())))


SECONDS_METHODS: list[tuple[str, Callable[[Metrics, float], None]]] = [
    ("queue_seconds", Metrics.queue_seconds),
    ("encode_seconds", Metrics.encode_seconds),
    ("first_token_seconds", Metrics.first_token_seconds),
    ("step_seconds", lambda metrics, seconds: metrics.step(4, seconds, 0.5)),
    ("inter_token_seconds", lambda metrics, seconds: metrics.inter_token_seconds(seconds, 1)),
]


@pytest.mark.parametrize(("name", "observe"), SECONDS_METHODS, ids=[name for name, _ in SECONDS_METHODS])
def test_seconds_are_counted_in_the_buckets_that_hold_them(
    name: str, observe: Callable[[Metrics, float], None], metrics: Metrics
) -> None:
    for seconds in (0.001, 0.0015, 1e9):
        observe(metrics, seconds)
    assert value(metrics, f"{name}_bucket", le="0.001") == 1  # a bucket holds its bound
    assert value(metrics, f"{name}_bucket", le="0.002") == 2
    assert value(metrics, f"{name}_bucket", le="+Inf") == 3
    assert value(metrics, f"{name}_count") == 3
    assert value(metrics, f"{name}_sum") == pytest.approx(1e9 + 0.0025)


def test_a_step_tells_of_its_rows_and_its_padding(metrics: Metrics) -> None:
    metrics.step(rows=3, seconds=0.01, padding=0.25)
    metrics.step(rows=64, seconds=0.01, padding=0.0)
    assert value(metrics, "batch_rows_bucket", le="4.0") == 1
    assert value(metrics, "batch_rows_sum") == 67
    assert value(metrics, "padding_ratio_bucket", le="0.0") == 1
    assert value(metrics, "padding_ratio_sum") == 0.25


def test_inter_token_seconds_weigh_a_text_by_its_tokens(metrics: Metrics) -> None:
    metrics.inter_token_seconds(0.004, tokens=9)
    metrics.inter_token_seconds(0.04, tokens=1)
    assert value(metrics, "inter_token_seconds_bucket", le="0.005") == 9
    assert value(metrics, "inter_token_seconds_count") == 10
    assert value(metrics, "inter_token_seconds_sum") == pytest.approx(9 * 0.004 + 0.04)


def test_tokens_add_up(metrics: Metrics) -> None:
    for count in (3, 4):
        metrics.source_tokens(count)
        metrics.target_tokens(10 * count)
        metrics.wasted_tokens("pruned", 100 * count)
    assert value(metrics, "source_tokens_total") == 7
    assert value(metrics, "target_tokens_total") == 70
    assert value(metrics, "wasted_tokens_total", reason="pruned") == 700
    assert value(metrics, "wasted_tokens_total", reason="cancelled") == 0


def test_rejections_and_deadlines_are_counted_apart(metrics: Metrics) -> None:
    metrics.rejected()
    metrics.deadline()
    metrics.deadline()
    assert value(metrics, "queue_rejections_total") == 1
    assert value(metrics, "deadline_hits_total") == 2


def test_gauges_hold_what_they_were_last_told(metrics: Metrics) -> None:
    metrics.queue(running=3, waiting=5)
    metrics.queue(running=2, waiting=0)
    metrics.certificate_drift(0.125)
    metrics.ready(True)
    assert value(metrics, "requests_running") == 2
    assert value(metrics, "requests_waiting") == 0
    assert value(metrics, "certificate_drift") == 0.125
    assert value(metrics, "ready") == 1


def test_limits_are_told(metrics: Metrics) -> None:
    metrics.limits(rows=64, queue=1024, memory=2**30)
    assert value(metrics, "batch_rows_limit") == 64
    assert value(metrics, "queue_limit") == 1024
    assert value(metrics, "memory_limit_bytes") == 2**30


def test_a_new_model_takes_the_place_of_the_old_one(metrics: Metrics) -> None:
    metrics.model_info("other", "fp32", "cpu", fallback=True, tolerance=0.01)
    assert value(metrics, "model_info", name="g2p", precision="int8", provider="cpu") is None
    assert value(metrics, "model_info", name="other", precision="fp32", provider="cpu") == 1
    assert value(metrics, "provider_fallback") == 1
    assert value(metrics, "certificate_tolerance") == 0.01


def test_the_build_is_told(metrics: Metrics) -> None:
    assert value(metrics, "build_info", version="0.1.0", onnxruntime="1.22", python="3.11") == 1


def test_reloads_are_counted_by_outcome(metrics: Metrics) -> None:
    metrics.reload("refused")
    assert value(metrics, "reloads_total", outcome="refused") == 1
    assert value(metrics, "reloads_total", outcome="ok") == 0


def test_a_request_is_counted_once_with_its_time(metrics: Metrics) -> None:
    metrics.request("/v1/score", "invalid_field", 0.25)
    assert value(metrics, "requests_total", endpoint="/v1/score", outcome="invalid_field") == 1
    assert value(metrics, "request_seconds_sum", endpoint="/v1/score") == 0.25
    assert sum(number for (name, _), number in samples(metrics).items() if name == "attendant_requests_total") == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.request("/v1/generate?x=1", "ok", 0.1),
        lambda m: m.request("/v1/generate", "fine", 0.1),
        lambda m: m.wasted_tokens("bored", 1),
        lambda m: m.reload("perhaps"),
    ],
)
def test_a_label_outside_its_set_is_refused_and_nothing_is_counted(
    call: Callable[[Metrics], None], metrics: Metrics
) -> None:
    before = metrics.render()[0].decode()
    with pytest.raises(ValueError, match="has no series for"):
        call(metrics)
    assert without_process(metrics.render()[0].decode()) == without_process(before)


def without_process(body: str) -> list[str]:
    return [line for line in body.splitlines() if "process_" not in line]


def test_a_counter_cannot_shrink(metrics: Metrics) -> None:
    with pytest.raises(ValueError, match="only grows, and was given -1"):
        metrics.source_tokens(-1)


def test_every_combination_of_labels_is_there_before_the_first_request(metrics: Metrics) -> None:
    found = samples(metrics)
    for endpoint in ENDPOINTS:
        assert found["attendant_request_seconds_count", frozenset({("endpoint", endpoint)})] == 0
        for outcome in OUTCOMES:
            labels = frozenset({("endpoint", endpoint), ("outcome", outcome)})
            assert found["attendant_requests_total", labels] == 0


def test_the_outcomes_are_the_types_of_the_errors() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ServiceError)]
    assert {kind.type for kind in kinds} | {"ok", "cancelled"} == set(OUTCOMES)


def test_nothing_is_lost_between_threads(metrics: Metrics) -> None:
    def count(_: int) -> None:
        for _ in range(500):
            metrics.request("/v1/generate", "ok", 0.5)
            metrics.step(8, 0.5, 0.5)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(8)))
    assert value(metrics, "requests_total", endpoint="/v1/generate", outcome="ok") == 4000
    assert value(metrics, "request_seconds_sum", endpoint="/v1/generate") == 2000
    assert value(metrics, "batch_rows_count") == 4000


def test_two_registries_know_nothing_of_each_other(metrics: Metrics) -> None:
    other = Metrics(CollectorRegistry())
    metrics.rejected()
    assert value(other, "queue_rejections_total") == 0


def test_the_registry_finds_samples_by_name() -> None:
    registry = CollectorRegistry()
    Metrics(registry).target_tokens(8)
    assert registry.get_sample_value("attendant_target_tokens_total") == 8


def test_one_registry_holds_one_service_only() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Metrics(registry)


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
        ("`outcome` of a reload", RELOADS),
        ("`reason`", WASTE),
    ],
)
def test_the_labels_in_the_docs_are_the_closed_sets(label: str, values: tuple[str, ...]) -> None:
    line = next(line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {label} |"))
    assert tuple(re.findall(r"`([^`]+)`", line.removeprefix(f"| {label}"))) == values
