"""The log: one line for each request and each event, text or JSON, on standard error."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from contextlib import suppress
from functools import lru_cache
from typing import Any, TextIO

from attendant.service.settings import Settings

WRITE_SECONDS = 0.05  # for which a request's line is held back, to be written with others
MOST_LINES = 10_000  # request lines that wait to be written; more are dropped and counted,
MOST_BYTES = 8 * 2**20  # and so are those beyond this, with the ones that are being written
WARNING_SECONDS = 10.0  # between two lines of a RareWarning
LOGGERS = ("attendant", "uvicorn.error", "asyncio")
PLAIN = re.compile(r"[\w.:/@+-]+", re.ASCII)  # values that need no quotes in the text format


def configure(settings: Settings, stream: TextIO | None = None) -> None:
    """Let this process log as the settings say."""
    handler = LineHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    level = settings.log_level.upper()
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        # uvicorn's messages about starting and stopping repeat ours.
        logger.setLevel(level if name == "attendant" else max(logging.WARNING, logging.getLevelName(level)))


def log_request(logger: logging.Logger, fields: dict[str, Any]) -> None:
    log_later(logger, logging.INFO, "request", fields)


def log_later(logger: logging.Logger, level: int, message: str, fields: dict[str, Any]) -> None:
    """Log without waiting for the write; the LogRecord is built by hand, since finding the caller costs most of it."""
    record = logging.LogRecord(logger.name, level, "", 0, message, None, None)
    record.fields = fields
    logger.handle(record)


class RareWarning:
    """A warning about what may happen very often: one line in `seconds`, with how often it happened since the last."""

    def __init__(self, logger: logging.Logger, message: str, seconds: float = WARNING_SECONDS) -> None:
        self._logger, self._message, self._seconds = logger, message, seconds
        self._count, self._last = 0, float("-inf")

    def warn(self, **fields: Any) -> None:
        """`fields` are those of the occurrence that is written."""
        self._count += 1
        now = time.monotonic()
        if now - self._last >= self._seconds and self._logger.isEnabledFor(logging.WARNING):
            log_later(self._logger, logging.WARNING, self._message, {"count": self._count, **fields})
            self._count, self._last = 0, now


class LineHandler(logging.StreamHandler[TextIO]):
    """Buffers request lines and writes them in batches from its own thread; writes other records at once, in order.

    A write releases the GIL, and the event loop would have to wait until it gets it back, once for every request.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lines: list[str] = []
        self._bytes = 0  # of lines that are not written yet
        self._lost = 0  # request lines dropped since the last write
        self._some = threading.Event()
        # Lock order: the handler's own lock, `_writing` (for a whole write), `_taking` (to change the buffer).
        self._writing, self._taking = threading.Lock(), threading.Lock()
        threading.Thread(target=self._write_later, name="attendant-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        is_request = getattr(record, "fields", None) is not None
        if is_request and len(self._lines) >= MOST_LINES:  # whatever reads the log has stalled
            self._lose()
            return
        try:
            line = self.format(record) + self.terminator
        except Exception:
            self.handleError(record)
        else:
            if is_request and self._bytes + len(line) > MOST_BYTES:
                self._lose()
                return
            with self._taking:
                self._lines.append(line)
                self._bytes += len(line)
        if not is_request:
            self.flush()
        elif not self._some.is_set():
            self._some.set()

    def flush(self) -> None:
        """Write the buffered lines; also called at exit. Request lines can be added meanwhile."""
        with self._writing:
            with self._taking:
                lines, self._lines, lost, self._lost = self._lines, [], self._lost, 0
            size = sum(map(len, lines))
            if lost:
                lines.append(f"{lost} lines of requests were lost: the log was not read.{self.terminator}")
            with suppress(OSError, ValueError):  # the stream is closed
                self.stream.write("".join(lines))
                self.stream.flush()
            with self._taking:
                self._bytes -= size

    def _lose(self) -> None:
        with self._taking:
            self._lost += 1
        if not self._some.is_set():
            self._some.set()

    def _write_later(self) -> None:
        while self._some.wait():
            time.sleep(WRITE_SECONDS)
            self._some.clear()
            self.flush()


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _time(record), "level": record.levelname.lower(), "message": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """name=value pairs; a value is quoted where needed, so that it cannot break the line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        pairs = [f"{name}={_plain(value)}" for name, value in fields.items()]
        line = " ".join([_time(record), record.levelname.lower(), _one_line(record.getMessage()), *pairs])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _time(record: logging.LogRecord) -> str:
    return f"{_second(int(record.created))}.{int(record.msecs):03d}Z"


@lru_cache(maxsize=1)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def _plain(value: Any) -> str:
    if isinstance(value, int | float):
        return str(value)
    text = str(value)
    return text if PLAIN.fullmatch(text) else json.dumps(value, default=str)


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)
