"""A request's line in the log says what was asked for and where all of its time went; lengths and beams are counted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attendant.service.errors import DeadlineError
from tests.support.serving import Service, in_process, running, wait_for

PHASES = ("read", "validate", "load", "tokenize", "queue", "encode", "decode", "loop", "answer", "send")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with in_process(tmp_path) as service:
        yield service


def last_line(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    lines = [record.fields for record in caplog.records if record.getMessage() == "request"]  # type: ignore[attr-defined]
    found: dict[str, Any] = lines[-1]
    return found


def asked(service: Service, caplog: pytest.LogCaptureFixture, path: str = "/v1/generate", **body: Any) -> Any:
    with caplog.at_level(logging.INFO, "attendant"):
        service.post(path, **body)
    return last_line(caplog)


def test_the_log_says_what_was_asked_for(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    line = asked(service, caplog, inputs=["cat", "dog"], beam_size=3, max_length=7)
    assert (line["inputs"], line["beam_size"], line["max_length"], line["stream"]) == (2, 3, 7, False)
    assert asked(service, caplog, inputs="cat", stream=True)["stream"] is True


def test_it_says_so_of_a_request_that_failed_too(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    service.engine.failure = DeadlineError("the deadline passed.")
    line = asked(service, caplog, inputs="cat", beam_size=2)
    assert (line["outcome"], line["beam_size"], line["source_tokens"]) == ("deadline", 2, 3)
    assert line["engine_ms"] >= 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/generate", {"inputs": "cat"}),
        ("/v1/next-token", {"source": "cat"}),
        ("/v1/score", {"source": "cat", "target": "K"}),
        ("/v1/completions", {"model": "fake", "prompt": "cat"}),
        ("/v1/chat/completions", {"model": "fake", "messages": [{"role": "user", "content": "cat"}]}),
        (
            "/v2/models/fake/infer",
            {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["cat"]}]},
        ),
    ],
)
def test_the_times_add_up_to_the_request_s(
    path: str, body: dict[str, Any], service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    line = asked(service, caplog, path, **body)
    parts = [line[f"{phase}_ms"] for phase in PHASES if f"{phase}_ms" in line]
    assert len(parts) == len(PHASES) - 1  # nothing was loaded
    assert min(parts) >= 0
    engine = line["queue_ms"] + line["encode_ms"] + line["decode_ms"]
    # The stand-in engine makes its times up: where they are longer than the wait, the rest of the wait is 0.
    assert sum(parts) - (engine if line["loop_ms"] == 0 else 0) <= line["ms"] + 0.1
    assert line["loop_ms"] == 0 or sum(parts) == pytest.approx(line["ms"], abs=1.0)


def test_what_decodes_nothing_has_no_times_of_its_own(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "attendant"):
        service.client.get("/healthz")
    assert not [name for name in last_line(caplog) if name.endswith("_ms")]


def test_lengths_and_beams_are_counted_by_text(service: Service) -> None:
    service.generate(inputs=["cat", "facade"], beam_size=4)
    service.post("/v1/score", source="cat", target="K AE T")
    found = service.registry.get_sample_value
    model = {"model": "fake"}
    assert found("attendant_source_length_tokens_count", model) == 3
    assert found("attendant_source_length_tokens_sum", model) == 3 + 6 + 3
    assert found("attendant_beam_size_sum", model) == 4 + 4 + 1
    assert found("attendant_target_length_tokens_count", model) == 3


def test_open_connections_are_counted(tmp_path: Path) -> None:
    with running(tmp_path) as (server, _):
        registry = server.server.app.state.parts.metrics._registry
        connection = server.connect()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        assert registry.get_sample_value("attendant_connections") == 1
        connection.close()
        wait_for(lambda: registry.get_sample_value("attendant_connections") == 0)
