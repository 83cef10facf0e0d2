"""What tests of the HTTP layer share: the application with a stand-in engine, in process or behind a real server."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from attendant.service.http.app import create_app
from attendant.service.http.server import Server, bind
from attendant.service.settings import Settings
from tests.support.fake_engine import FakeEngine, make_bundle

PATIENCE = 20.0  # seconds, for what must come


@dataclass
class Service:
    engine: FakeEngine
    client: TestClient
    registry: CollectorRegistry

    def post(self, path: str, **body: Any) -> Any:
        return self.client.post(path, json=body)

    def generate(self, **body: Any) -> Any:
        return self.post("/v1/generate", **{"inputs": "cat", **body})

    def refused(self, path: str = "/v1/generate", **body: Any) -> dict[str, Any]:
        """The error of a request that must be refused with 422."""
        answer = self.post(path, **body)
        assert answer.status_code == 422, answer.text
        error: dict[str, Any] = answer.json()["error"]
        assert error["type"] == "invalid_field"
        return error

    def outcomes(self) -> dict[tuple[str, str], int]:
        """Every (endpoint, outcome) that was counted, and how often."""
        samples = [sample for metric in self.registry.collect() for sample in metric.samples]
        found = [sample for sample in samples if sample.name == "attendant_requests_total" and sample.value]
        counted = Counter[tuple[str, str]]()
        for sample in found:
            counted[sample.labels["endpoint"], sample.labels["outcome"]] += int(sample.value)
        return dict(counted)


@contextmanager
def in_process(
    directory: Path, load: Any = None, source: int = 16, manifest: dict[str, Any] | None = None, **settings: Any
) -> Iterator[Service]:
    """`manifest`: fields of the bundle that are not as make_bundle has them."""
    engine = FakeEngine(replace(make_bundle(directory, source=source), **(manifest or {})))
    engine.start()
    registry = CollectorRegistry()
    app = create_app(Settings(**settings), engine, registry, load)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Service(engine, client, registry)


class Running:
    """A real server in a thread, on a port of its own."""

    def __init__(
        self, load: Callable[[Path | None], Any], settle: Callable[[], None] | None = None, **settings: Any
    ) -> None:
        self.lines: list[str] = []
        self.server = Server(Settings(**{"port": 0, **settings}), load, self.lines.append, settle)
        self.listening = bind("127.0.0.1", 0)
        self.port = self.listening.getsockname()[1]
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.server.run([self.listening])
        except BaseException as error:
            self.failure = error

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        connection = self.connect()
        try:
            content = body if isinstance(body, bytes) or body is None else json.dumps(body)
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def stop(self) -> None:
        """As SIGTERM does."""
        self.server._stop = True

    def join(self) -> None:
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@contextmanager
def running(directory: Path, **settings: Any) -> Iterator[tuple[Running, FakeEngine]]:
    """A server that is ready, and its engine."""
    engine = FakeEngine(make_bundle(directory))
    engine.start()
    server = Running(lambda _: engine, **settings)
    try:
        wait_for(lambda: server.lines or server.failure)
        yield server, engine
    finally:
        engine.resume()
        server.stop()
        server.join()


def wait_for(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "what must come did not"
        time.sleep(0.002)


def events_of(text: str) -> list[tuple[str, Any]]:
    """Server-sent events as (name, data)."""
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found
