"""The log: lines that stay lines, in text or JSON."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from attendant.service.settings import Settings
from attendant.service.watch import logs
from tests.support.serving import wait_for


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """The process's loggers, as they were."""
    kept = [(logging.getLogger(n), vars(logging.getLogger(n)).copy()) for n in logs.LOGGERS]
    yield
    for logger, before in kept:
        logger.handlers, logger.propagate = before["handlers"], before["propagate"]
        logger.setLevel(before["level"])


def written(fields: dict[str, Any], **settings: Any) -> str:
    stream = io.StringIO()
    logs.configure(Settings(**settings), stream)
    logs.log_request(logging.getLogger("attendant"), fields)
    logging.getLogger("attendant").handlers[0].flush()
    return stream.getvalue()


def test_a_requests_line_is_written_soon_without_being_asked_for() -> None:
    stream = io.StringIO()
    logs.configure(Settings(), stream)
    logs.log_request(logging.getLogger("attendant"), {"id": "a"})
    wait_for(lambda: "request id=a" in stream.getvalue())


def test_lines_are_in_the_order_of_what_happened() -> None:
    stream = io.StringIO()
    logs.configure(Settings(), stream)
    logger = logging.getLogger("attendant")
    for number in range(50):
        logs.log_request(logger, {"id": number})
        if number % 20 == 0:
            logger.warning("warned %d", number)
            assert f"warned {number}" in stream.getvalue()
    logger.handlers[0].flush()
    found = re.findall(r"(?:id=|warned )(\d+)", stream.getvalue())
    assert found == [str(n) for number in range(50) for n in [number] * (2 if number % 20 == 0 else 1)]


class StuckStream(io.StringIO):
    """Nothing is read from it before it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.read_on, self.asked = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.asked.set()
        assert self.read_on.wait(30)
        return super().write(text)


def test_a_reader_that_stops_reading_holds_up_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_LINES", 5)
    stream, logger = StuckStream(), logging.getLogger("attendant")
    logs.configure(Settings(), stream)
    logs.log_request(logger, {"id": 0})
    assert stream.asked.wait(30)
    for number in range(1, 9):  # each would wait for ever
        logs.log_request(logger, {"id": number})
    stream.read_on.set()
    wait_for(lambda: "3 lines of requests were lost" in stream.getvalue())
    assert re.findall(r"id=(\d)", stream.getvalue()) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_lines_that_wait_are_bounded_in_bytes(log_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_BYTES", 5000)
    stream, logger = StuckStream(), logging.getLogger("attendant")
    logs.configure(Settings(log_format=log_format), stream)
    logs.log_request(logger, {"id": 0, "text": "x" * 1000})
    assert stream.asked.wait(30)
    for number in range(1, 9):
        logs.log_request(logger, {"id": number, "text": "x" * 1000})
    stream.read_on.set()
    wait_for(lambda: "lost" in stream.getvalue())
    assert "5 lines of requests were lost" in stream.getvalue()
    for number in range(9, 12):  # what was written makes room
        logs.log_request(logger, {"id": number, "text": "x" * 1000})
    logger.handlers[0].flush()
    assert stream.getvalue().count("x" * 1000) == 4 + 3


def test_a_warning_that_comes_often_is_written_rarely_and_counted() -> None:
    stream, logger = io.StringIO(), logging.getLogger("attendant")
    logs.configure(Settings(), stream)
    rare, now = logs.RareWarning(logger, "again"), logs.RareWarning(logger, "once more", seconds=0)
    for number in range(100):
        rare.warn(id=number)
    for number in range(3):
        now.warn(id=number)
    rare._last -= logs.WARNING_SECONDS
    rare.warn(id=100)
    logger.handlers[0].flush()
    assert re.findall(r"warning (.*)", stream.getvalue()) == [
        "again count=1 id=0",
        *(f"once more count=1 id={number}" for number in range(3)),
        "again count=100 id=100",
    ]


def test_a_rare_warning_does_not_wait_for_a_reader_that_has_stopped() -> None:
    stream, logger = StuckStream(), logging.getLogger("attendant")
    logs.configure(Settings(), stream)
    rare = logs.RareWarning(logger, "again", seconds=0)
    for _ in range(100):  # each would wait for ever
        rare.warn()
    stream.read_on.set()


def test_a_reader_that_has_gone_harms_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    stream, logger = io.StringIO(), logging.getLogger("attendant")
    logs.configure(Settings(), stream)
    stream.close()
    logs.log_request(logger, {"id": "a"})
    logger.handlers[0].flush()
    logger.warning("nobody hears this")
    assert capsys.readouterr().err == ""  # nor what logging says of an error of its own
    assert logger.handlers[0]._lines == []  # type: ignore[attr-defined]  # nothing is kept for it


def test_a_line_of_json_has_the_fields() -> None:
    line = json.loads(written({"id": "a", "status": 200, "texts": ["é\n"]}, log_format="json"))
    assert (line["message"], line["level"], line["status"], line["texts"]) == ("request", "info", 200, ["é\n"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])


def test_a_line_of_text_has_the_fields_in_order() -> None:
    assert written({"id": "a-1", "path": "/v1/x", "ms": 1.5}).endswith("Z info request id=a-1 path=/v1/x ms=1.5\n")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_whatever_a_client_sends_stays_in_one_line(log_format: str) -> None:
    line = written({"path": '/a\nb id=forged "q" \u2028 \ud800'}, log_format=log_format)
    assert line.count("\n") == 1
    assert len(line.splitlines()) == 1


def test_the_level_holds_back_requests() -> None:
    stream = io.StringIO()
    logs.configure(Settings(log_level="warning"), stream)
    logger = logging.getLogger("attendant")
    assert not logger.isEnabledFor(logging.INFO)
    logger.error("trouble: %s", "here")
    assert "error trouble: here" in stream.getvalue()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_traceback_is_whole(log_format: str) -> None:
    stream = io.StringIO()
    logs.configure(Settings(log_format=log_format), stream)
    try:
        raise ValueError("inside")
    except ValueError:
        logging.getLogger("attendant").exception("it failed")
    assert "ValueError: inside" in stream.getvalue()


def test_an_event_that_is_logged_while_requests_are_written_blocks_nobody() -> None:
    """The event holds the handler's lock while it is formatted, and the writer may begin in that time."""
    handler = logs.LineHandler(SlowStream())

    class Formatter(logs.TextFormatter):
        def format(self, record: logging.LogRecord) -> str:
            if getattr(record, "fields", None) is None:
                wait_for(handler._writing.locked)
            return super().format(record)

    handler.setFormatter(Formatter())
    logger = logging.Logger("attendant")
    logger.addHandler(handler)

    def log() -> None:
        logs.log_request(logger, {"id": "a"})
        logger.error("an event")

    thread = threading.Thread(target=log, daemon=True)
    thread.start()
    thread.join(timeout=20)
    assert not thread.is_alive()


class SlowStream(io.StringIO):
    def write(self, text: str) -> int:
        time.sleep(0.5)
        return super().write(text)
