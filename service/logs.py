"""The log: one line for each request and each event, text or JSON, on standard error."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from functools import lru_cache
from typing import Any, TextIO

from service.settings import Settings

LOGGERS = ("attendant", "uvicorn.error", "asyncio")
PLAIN = re.compile(r"[\w.:/@+-]+", re.ASCII)  # what needs no quotes in a line of text


def configure(settings: Settings, stream: TextIO | None = None) -> None:
    """Let this process log as the settings say."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    level = settings.log_level.upper()
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        # The server's own chatter of starting and stopping says what our lines say.
        logger.setLevel(level if name == "attendant" else max(logging.WARNING, logging.getLevelName(level)))


def log_request(logger: logging.Logger, fields: dict[str, Any]) -> None:
    """A request's line; made by hand, since looking up who called costs more than the rest of the line."""
    record = logging.LogRecord(logger.name, logging.INFO, "", 0, "request", None, None)
    record.fields = fields
    logger.handle(record)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _time(record), "level": record.levelname.lower(), "message": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """name=value, in quotes where a value is not plain, so that a line stays a line."""

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
