"""Traces: `traceparent` in the log, and spans of what a request went through, by OpenTelemetry's own SDK."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from attendant.service.engine.engine import Engine
from attendant.service.errors import DeadlineError, StartError
from attendant.service.http.app import create_app
from attendant.service.settings import Settings
from attendant.service.watch.tracing import Tracing
from tests.support import engines
from tests.support.fake_engine import TIMING, FakeEngine, make_bundle
from tests.support.serving import wait_for
from tests.support.small_models import make_model

ROOT = Path(__file__).parents[3]
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
NANOSECOND = 1e-9


class Traced:
    """A service whose spans are kept in memory."""

    def __init__(self, client: TestClient, exporter: InMemorySpanExporter) -> None:
        self.client, self.exporter = client, exporter

    def spans(self) -> dict[str, list[ReadableSpan]]:
        found: dict[str, list[ReadableSpan]] = {}
        for span in self.exporter.get_finished_spans():
            found.setdefault(span.name, []).append(span)
        return found


def serving(engine: Any, **provider: Any) -> Iterator[Traced]:
    exporter = InMemorySpanExporter()
    tracer_provider = TracerProvider(**provider)
    tracer_provider.add_span_processor(SimpleSpanProcessor(exporter))
    app = create_app(Settings(), load=lambda _: engine, tracing=Tracing(tracer_provider))
    with TestClient(app, raise_server_exceptions=False) as client:
        wait_for(lambda: client.get("/readyz").status_code == 200)
        exporter.clear()
        yield Traced(client, exporter)


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    engine = FakeEngine(make_bundle(tmp_path))
    engine.start()
    return engine


@pytest.fixture
def traced(engine: FakeEngine) -> Iterator[Traced]:
    yield from serving(engine)


def last_line(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """The fields of the last request's line in the log."""
    lines = [record for record in caplog.records if record.getMessage() == "request"]
    fields: dict[str, Any] = lines[-1].fields  # type: ignore[attr-defined]
    return fields


@pytest.fixture(autouse=True)
def _log_requests(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "attendant")


def plain(engine: FakeEngine) -> TestClient:
    return TestClient(create_app(Settings(), engine))


def test_without_tracing_the_log_has_the_trace_of_the_header(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with plain(engine) as client:
        client.post("/v1/generate", json={"inputs": "cat"}, headers=HEADERS)
    assert (last_line(caplog)["trace_id"], last_line(caplog)["parent_id"]) == (TRACE, PARENT)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        "x" * 55,
    ],
)
def test_a_traceparent_that_is_none_is_left_out(
    header: str | None, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with plain(engine) as client:
        client.get("/v1/info", headers={} if header is None else {"traceparent": header})
    assert not {"trace_id", "parent_id"} & set(last_line(caplog))


def test_with_tracing_the_log_has_the_request_s_own_span(traced: Traced, caplog: pytest.LogCaptureFixture) -> None:
    traced.client.get("/v1/info", headers=HEADERS)
    (span,) = traced.exporter.get_finished_spans()
    assert last_line(caplog)["trace_id"] == TRACE == f"{span.context.trace_id:032x}"
    assert last_line(caplog)["span_id"] == f"{span.context.span_id:016x}"


def test_a_request_is_a_child_of_the_span_that_the_header_names(traced: Traced) -> None:
    traced.client.post("/v1/generate", json={"inputs": "cat"}, headers={**HEADERS, "X-Request-Id": "mine"})
    (span,) = traced.spans()["POST /v1/generate"]
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    assert span.attributes is not None
    assert span.attributes["http.response.status_code"] == 200
    assert span.attributes["attendant.request_id"] == "mine"


@pytest.mark.parametrize(
    ("path", "body", "texts"),
    [
        ("/v1/generate", {"inputs": ["cat", "dog"]}, 2),
        ("/v1/generate", {"inputs": "cat", "stream": True}, 1),
        ("/v1/completions", {"model": "fake", "prompt": ["cat", "dog"]}, 2),
        ("/v1/score", {"source": "cat", "target": "K"}, 1),
        ("/v1/next-token", {"source": "cat"}, 1),
    ],
)
def test_every_text_has_a_span_for_queue_encode_and_decode(
    path: str, body: dict[str, Any], texts: int, traced: Traced
) -> None:
    assert traced.client.post(path, json=body).status_code == 200
    spans = traced.spans()
    (request,) = spans.pop(f"POST {path}")
    assert set(spans) == {"queue", "encode", "decode"}
    for name, found in spans.items():
        assert len(found) == texts
        for span in found:
            assert span.parent == request.context
            assert span.start_time is not None
            assert span.end_time is not None
            assert (span.end_time - span.start_time) * NANOSECOND == pytest.approx(getattr(TIMING, name))


def test_phases_follow_each_other_inside_their_request(tmp_path: Path) -> None:
    """With the real engine and its own times."""
    engine = Engine(engines.make_bundle(make_model(seed=3), tmp_path / "small", ("fp32",)))
    engine.start()
    for traced in serving(engine):
        assert traced.client.post("/v1/generate", json={"inputs": "abc", "beam_size": 3}).status_code == 200
        spans = traced.spans()
        times = [spans[name][0] for name in ("POST /v1/generate", "queue", "encode", "decode")]
        starts, ends = [span.start_time or 0 for span in times], [span.end_time or 0 for span in times]
        assert starts == sorted(starts)
        assert ends[1:] == [*starts[2:], ends[3]]
        assert ends[3] <= ends[0]
        assert spans["decode"][0].attributes is not None
        assert spans["decode"][0].attributes["attendant.source_tokens"] == 3


def test_a_text_that_fails_is_an_event_of_its_request(traced: Traced, engine: FakeEngine) -> None:
    engine.failures = {engine.source_tokenizer.encode("dog"): DeadlineError("the deadline passed.")}
    traced.client.post("/v1/generate", json={"inputs": ["cat", "dog"]})
    spans = traced.spans()
    (event,) = spans["POST /v1/generate"][0].events
    assert event.attributes == {"attendant.input": 1, "error.type": "DeadlineError"}
    assert len(spans["decode"]) == 1


def test_only_a_fault_of_the_service_is_an_error(traced: Traced, engine: FakeEngine) -> None:
    traced.client.post("/v1/generate", json={"inputs": ""})
    engine.failure = ValueError("broken")
    traced.client.post("/v1/generate", json={"inputs": "cat"})
    refused, failed = traced.spans()["POST /v1/generate"]
    assert (refused.status.is_ok, failed.status.is_ok) == (True, False)


def test_a_path_that_does_not_exist_has_a_span_of_bounded_name(traced: Traced) -> None:
    traced.client.get("/some/where")
    assert set(traced.spans()) == {"GET"}


def test_a_request_that_is_not_sampled_costs_no_spans(engine: FakeEngine) -> None:
    for traced in serving(engine, sampler=ALWAYS_OFF):
        assert traced.client.post("/v1/generate", json={"inputs": "cat"}).status_code == 200
        assert traced.exporter.get_finished_spans() == ()


def test_without_tracing_opentelemetry_s_sdk_is_not_imported() -> None:
    code = (
        "import sys; from attendant.service.http.app import create_app\n"
        "from attendant.service.settings import Settings\n"
        "create_app(Settings()); print([name for name in sys.modules if name.startswith('opentelemetry.sdk')])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_where_the_extra_is_missing_the_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "attendant.service.watch.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(StartError, match=r"pip install 'attendant-transformer\[otel\]'"):
        create_app(Settings(tracing=True))


def test_spans_leave_for_the_collector_when_the_service_ends(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the exporter that is the default, and a collector that keeps what it is sent."""
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    received: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = Thread(target=collector.serve_forever)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        with TestClient(create_app(Settings(tracing=True), load=lambda _: engine)) as client:
            wait_for(lambda: client.get("/readyz").status_code == 200)
            client.post("/v1/generate", json={"inputs": "cat"})
        collector.shutdown()
        thread.join()
    sent = b"".join(content for _, content in received)
    assert {path for path, _ in received} == {"/v1/traces"}
    assert json.dumps("POST /v1/generate").strip('"').encode() in sent
    assert b"attendant" in sent
