"""`attendant serve` as a process of its own, and mixed requests to send to it."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attendant.export.bundle import Bundle
from tests.support.engines import LETTERS
from tests.support.serving import events_of

ROOT = Path(__file__).parents[2]
TEXTS = ["abc", "f", "ihgfedcb", "bbbbbbbbbbbb", "abcdefghiabcdefghiabcdefghi", "ca", "gh"]


class Process:
    """A server that is ready."""

    def __init__(self, bundle: Bundle | None, *flags: str) -> None:
        """Without a bundle, the flags tell what is served."""
        served = [] if bundle is None else ["--bundle", str(bundle.directory)]
        command = [sys.executable, "-m", "attendant", "serve", "--port", "0", *served, *flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ATTENDANT_")}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # a pipe that no one reads would block it
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
            start_new_session=True,  # no terminal, so SIGHUP reloads
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert found, line + self.stop()[1]
        self.port = int(found[1])

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        return self.ask("POST", path, json.dumps(body))

    def ask(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, which: int) -> None:
        self._process.send_signal(which)

    def stop(self) -> tuple[int, str]:
        """The exit code, and what it wrote to standard error."""
        if self._process.poll() is None:
            self._process.terminate()
        self._process.communicate(timeout=60)
        self._log.seek(0)
        errors = self._log.read()
        self._log.close()
        return self._process.returncode, errors


def requests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Mixed requests, whose answers depend on nothing but themselves."""
    for i in itertools.count():
        text = TEXTS[i % len(TEXTS)]
        yield "/v1/generate", {"inputs": text, "beam_size": 1 + i % 5, "num_hypotheses": 1 + i % 5, "max_length": 24}
        yield "/v1/generate", {"inputs": [text, LETTERS], "temperature": 1.0, "seed": i % 11, "max_length": 16}
        yield "/v1/generate", {"inputs": text, "beam_size": 3, "stream": True, "max_length": 20}
        yield "/v1/next-token", {"source": text, "prefix": "A B", "top_k": 0}
        yield "/v1/score", {"source": text, "target": "C D E"}


def without_timing(answer: tuple[int, str]) -> Any:
    status, text = answer
    if text.startswith("event:"):
        events = events_of(text)
        events[-1][1].pop("timing", None)
        return status, events
    value = json.loads(text)
    value.pop("timing", None)
    return status, value
