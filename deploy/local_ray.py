"""A Ray cluster of this machine for deploy/check_ray.py, and what it is asked."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import secrets
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")

import ray
from ray import serve

from attendant.service.ray import serve as ray_serve

PATIENCE = 60.0  # seconds, for what must come
Answer = tuple[int, dict[str, str], bytes]  # status, headers, body


@contextlib.contextmanager
def cluster() -> Iterator[int]:
    """A Ray cluster in processes of its own, and the port of its proxy."""
    if has_network():
        raise SystemExit("Ray listens on every address: run this by deploy/loopback.sh, which leaves 127.0.0.1.")
    with tempfile.TemporaryDirectory(prefix="ray") as directory:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # else Ray writes one into the home directory
        ray.init(
            num_cpus=3,  # numbers for Ray's bookkeeping: two engines, and one that reads and writes
            object_store_memory=200 * 2**20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            _node_ip_address="127.0.0.1",
            _temp_dir=directory,
        )
        try:
            port = free_port()
            serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
            yield port
        finally:
            serve.shutdown()
            ray.shutdown()


def deploy(**arguments: Any) -> None:
    serve.run(ray_serve.build({"replicas": 2, "threads": 1, "log_level": "warning", **arguments}))


def replica_names() -> list[str]:
    named = ray.util.list_named_actors(all_namespaces=True)
    return sorted(each["name"] for each in named if each["name"].startswith("SERVE_REPLICA::default#attendant"))


def is_healthy() -> bool:
    application = serve.status().applications["default"]
    return str(application.deployments["attendant"].status.value) == "HEALTHY"


def outcomes(port: int) -> Counter[str]:
    """How often each outcome of /v1/generate was counted."""
    lines = re.findall(r'^attendant_requests_total\{endpoint="/v1/generate",.*$', metrics(port), re.MULTILINE)
    found: Counter[str] = Counter()
    for line in lines:
        found[line.partition('outcome="')[2].partition('"')[0]] += int(float(line.rpartition(" ")[2]))
    return +found


def gauge(port: int, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", metrics(port), re.MULTILINE))


def metrics(port: int) -> str:
    return ask(port, "GET", "/metrics")[2].decode()


def ask(port: int, method: str, path: str, body: Any = None, key: str = "") -> Answer:
    with connected(port) as connection:
        headers = {"authorization": key} if key else {}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def connected(port: int) -> contextlib.closing[http.client.HTTPConnection]:
    return contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE))


def has_network() -> bool:
    """Whether other machines can be reached; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        return True
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("what must come did not")
        time.sleep(0.02)
