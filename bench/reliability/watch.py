"""What a running service must be after anything: the same answers, counters that add up, gauges at zero."""

from __future__ import annotations

import http.client
import json
import re
import time
from typing import Any

from bench.http.servers import HOST

PATIENCE = 30.0  # seconds for gauges to come to rest
RESTING = ("requests_running", "requests_waiting", "tokens_waiting", "requests_memory_bytes")
KNOWN = (
    ("/v1/generate", {"inputs": ["attendant", "transformer", "facade"], "beam_size": 4, "num_hypotheses": 2}),
    ("/v1/next-token", {"source": "attendant", "top_k": 5}),
    ("/v1/score", {"source": "cat", "target": "K AE1 T"}),
)


def ask(
    port: int, path: str, body: Any = None, method: str | None = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=120)
    try:
        content = json.dumps(body) if body is not None and not isinstance(body, bytes) else body
        connection.request(method or ("GET" if body is None else "POST"), path, content, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def known_answer(port: int) -> list[Any]:
    """Answers to requests that do not depend on anything else; without their times."""
    found = []
    for path, body in KNOWN:
        status, content = ask(port, path, body)
        answer = json.loads(content)
        answer.pop("timing", None)
        found.append((status, answer))
    return found


def metrics(port: int, headers: dict[str, str] | None = None) -> dict[str, float]:
    """Every sample of /metrics, by its name with labels."""
    text = ask(port, "/metrics", headers=headers)[1].decode()
    return {name: float(value) for name, value in re.findall(r"^([a-z_]+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)}


def total(samples: dict[str, float], name: str, **labels: str) -> float:
    """The sum of the samples of this name that have these labels."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        value for key, value in samples.items() if key.split("{")[0] == name and all(each in key for each in wanted)
    )


def gauges_at_rest(port: int, headers: dict[str, str] | None = None) -> bool:
    """Whether nothing runs, waits or is connected but the asking itself, soon enough."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        found = metrics(port, headers)
        if not any(total(found, f"attendant_{name}") for name in RESTING) and found["attendant_connections"] <= 1:
            return True
        time.sleep(0.1)
    return False
