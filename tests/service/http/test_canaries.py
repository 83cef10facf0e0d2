"""Keys and texts of requests are searched for in all that a service says: answers to others, metrics, and its log."""

from __future__ import annotations

import http.client
import json
import os
import sys
from typing import Any

import pytest

from tests.support.children import started

KEY, OTHER, ADMIN = "canarykeyone", "canarykeytwo", "canarykeyadmin"
SECRET, WRONG = "zqxcanaryqzx", "canarykeywrong"  # a text, which the model can read; a key that is none
PATHS = ("/metrics", "/v1/info", "/v1/models", "/v2", "/v2/models/g2p/stats", "/languages", "/openapi.json", "/healthz")
BODIES: list[tuple[str, Any]] = [
    ("/v1/generate", {"inputs": SECRET, "logprobs": True, "beam_size": 2}),
    ("/v1/generate", {"inputs": SECRET, "stream": True}),
    ("/v1/generate", {"inputs": f"{SECRET} {SECRET}", "split": "sentences", "allow_unknown": True}),
    ("/v1/generate", {"inputs": SECRET, "terms": [SECRET], "forbid": [SECRET], "choices": [SECRET]}),
    ("/v1/generate", {"inputs": SECRET, SECRET: SECRET}),
    ("/v1/generate", {"inputs": SECRET, "beam_size": SECRET}),
    ("/v1/generate", {"inputs": SECRET * 100}),
    ("/v1/generate", {"inputs": SECRET, "timeout_ms": 1}),
    ("/v1/generate", f'{{"inputs": "{SECRET}'.encode()),
    ("/v1/next-token", {"source": SECRET, "top_k": 3}),
    ("/v1/score", {"source": SECRET, "target": SECRET}),
    ("/v1/explain", {"source": SECRET}),
    ("/v1/completions", {"model": "g2p", "prompt": SECRET, "user": SECRET}),
    ("/v1/chat/completions", {"model": "g2p", "messages": [{"role": "user", "content": SECRET}]}),
    ("/v2/models/g2p/infer", {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [SECRET]}]}),
    ("/translate", {"q": SECRET, "source": "en", "target": "fr", "api_key": KEY}),
    ("/detect", {"q": SECRET, "api_key": WRONG}),
    ("/v1/reload", {"bundle": f"/{SECRET}"}),
]


@pytest.fixture(scope="module", params=["text", "json"])
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a service said, by where it did, of the requests of one client; the last of its log after its end."""
    log = tmp_path_factory.mktemp("log") / "log"
    environment = {"ATTENDANT_API_KEYS": f"one:{KEY},{OTHER}", "ATTENDANT_ADMIN_KEYS": ADMIN}
    command = [sys.executable, "-m", "attendant", "serve", "--port", "0", "--log-level", "debug", "--libretranslate"]
    command += ["--language-pairs", "g2p:en:fr", "--log-format", request.param]
    found: dict[str, str] = {}
    with (
        log.open("wb") as written,
        started(command, env={**os.environ, **environment}, stdout=-1, stderr=written) as process,
    ):
        assert process.stdout is not None
        found["standard output"] = line = process.stdout.readline()
        port = int(line.split("http://127.0.0.1:")[1].split(":")[0])
        for path, body in BODIES:
            for key in (KEY, WRONG):
                found[f"{path} {body!s:.40} {key}"] = ask(port, path, body, key)
        for path in PATHS:
            found[f"{path} by another"] = ask(port, path, None, OTHER)
        process.terminate()
        assert process.wait(60) == 0
        found["log"] = log.read_text(encoding="utf-8")
    return found


def ask(port: int, path: str, body: Any, key: str) -> str:
    """The whole answer, its headers too; the key is also given where other services take one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Authorization": f"Bearer {key}", "X-Api-Key": key, "Cookie": f"key={key}"}
    content = body if isinstance(body, bytes | None) else json.dumps(body)
    try:
        connection.request("GET" if body is None else "POST", path, content, headers)
        answer = connection.getresponse()
        return f"{answer.status} {answer.headers}{answer.read().decode()}"
    finally:
        connection.close()


def test_the_requests_were_answered_refused_and_logged(said: dict[str, str]) -> None:
    statuses = {text[:3] for where, text in said.items() if where.startswith("/")}
    assert {"200", "400", "401", "403", "422"} <= statuses
    assert said["log"].count("/v1/generate") > 10


@pytest.mark.parametrize("key", [KEY, OTHER, ADMIN, WRONG])
def test_no_key_is_said_anywhere(key: str, said: dict[str, str]) -> None:
    assert [where for where, text in said.items() if key in text] == []


def test_no_text_is_said_to_another_or_logged(said: dict[str, str]) -> None:
    others = {where: text for where, text in said.items() if where.endswith("another") or where == "log"}
    assert len(others) == len(PATHS) + 1
    assert [where for where, text in others.items() if SECRET in text] == []
