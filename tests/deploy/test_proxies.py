"""Proxies that balance requests: nginx for real, Envoy's configuration by its own protocol definitions."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from attendant.service.settings import Settings
from deploy.nginx import nginx, program
from tests.support.fake_engine import FakeEngine
from tests.support.serving import PATIENCE, Running, running, wait_for

PROXIES = Path(__file__).parents[2] / "deploy/proxies"
ENVOY = Path(sys.prefix, "envoy")  # apart from other packages, which bring files of the same names
BODY = json.dumps({"inputs": "facade"})
Servers = list[tuple[Running, FakeEngine]]
needs_nginx = pytest.mark.skipif(program() is None, reason="nginx is not installed")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with running(tmp_path / "a") as first, running(tmp_path / "b") as second:
        yield [first, second]


@pytest.fixture
def connection(servers: Servers) -> Iterator[http.client.HTTPConnection]:
    """One keep-alive connection to nginx, in front of both servers."""
    with nginx([server.port for server, _ in servers]) as port:
        found = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        yield found
        found.close()


def ask(connection: http.client.HTTPConnection, body: str = BODY) -> tuple[int, bytes]:
    connection.request("POST", "/v1/generate", body)
    answer = connection.getresponse()
    return answer.status, answer.read()


@needs_nginx
def test_requests_on_one_connection_spread_over_both_servers(
    servers: Servers, connection: http.client.HTTPConnection
) -> None:
    assert {ask(connection)[0] for _ in range(20)} == {200}
    assert [engine.submissions for _, engine in servers] == [10, 10]


@needs_nginx
def test_the_server_that_is_busy_gets_nothing_more(servers: Servers, connection: http.client.HTTPConnection) -> None:
    for _, engine in servers:
        engine.pause_after = 1
    slow = http.client.HTTPConnection("127.0.0.1", connection.port, timeout=PATIENCE)
    slow.request("POST", "/v1/generate", BODY)
    wait_for(lambda: sum(engine.submissions for _, engine in servers) == 1)
    busy, free = sorted((engine for _, engine in servers), key=lambda engine: -engine.submissions)
    free.resume()
    assert {ask(connection)[0] for _ in range(10)} == {200}
    assert (busy.submissions, free.submissions) == (1, 10)
    busy.resume()
    assert slow.getresponse().status == 200
    slow.close()


@needs_nginx
def test_a_streamed_token_arrives_before_the_next_one_is_decoded(
    servers: Servers, connection: http.client.HTTPConnection
) -> None:
    for _, engine in servers:
        engine.pause_after = 1
    connection.request("POST", "/v1/generate", json.dumps({"inputs": "facade", "stream": True}))
    answer = connection.getresponse()
    assert answer.readline() == b"event: token\n"  # nothing more is decoded before this has come
    for _, engine in servers:
        engine.resume()
    assert b"event: done" in answer.read()


@needs_nginx
def test_while_one_server_stops_the_other_answers_everything(
    servers: Servers, connection: http.client.HTTPConnection
) -> None:
    servers[0][0].server.models.refuse()  # the first thing that SIGTERM does
    assert {ask(connection)[0] for _ in range(10)} == {200}
    assert servers[0][1].submissions == 0


@needs_nginx
def test_a_full_queue_is_told_to_the_client(servers: Servers, connection: http.client.HTTPConnection) -> None:
    for _, engine in servers:
        engine.max_queue_requests = 0
    connection.request("POST", "/v1/generate", BODY)
    answer = connection.getresponse()
    answer.read()
    assert (answer.status, answer.getheader("retry-after")) == (429, "1")


def test_a_proxy_waits_longer_than_a_request_may_take() -> None:
    text = (PROXIES / "nginx.conf").read_text(encoding="utf-8")
    settings = Settings()
    assert f"proxy_read_timeout {settings.timeout_ms // 1000 + 15}s" in text
    assert f"keepalive_timeout {settings.keep_alive_seconds - 15}s" in text
    assert f"client_max_body_size {settings.max_body_bytes // 2**20}m" in text
    assert envoy_manager()["stream_idle_timeout"] == f"{settings.timeout_ms // 1000 + 15}s"
    assert envoy_routes()[-1]["route"]["timeout"] == "0s"  # of a whole answer, streams too


def envoy() -> Any:
    return yaml.safe_load((PROXIES / "envoy.yaml").read_text(encoding="utf-8"))


def envoy_manager() -> Any:
    return envoy()["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


def envoy_routes() -> Any:
    return envoy_manager()["route_config"]["virtual_hosts"][0]["routes"]


@needs_nginx
def test_what_is_of_one_server_is_not_reached_through_a_proxy(connection: http.client.HTTPConnection) -> None:
    for method, path in (("GET", "/metrics"), ("POST", "/v1/reload")):
        connection.request(method, path)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 404
        refused = {"match": {"path": path}, "direct_response": {"status": 404}}
        assert refused in envoy_routes()


def test_envoy_sends_to_the_less_busy_of_the_pods() -> None:
    (cluster,) = envoy()["static_resources"]["clusters"]
    assert (cluster["lb_policy"], cluster["type"]) == ("LEAST_REQUEST", "STRICT_DNS")
    (endpoint,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert endpoint["endpoint"]["address"]["socket_address"] == {"address": "attendant-pods", "port_value": 8000}


def as_envoy_reads(text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.envoy_bootstrap"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ENVOY), str(PROXIES.parent.parent)])}
    return subprocess.run(
        command, input=text, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.mark.skipif(not ENVOY.is_dir(), reason="Envoy's definitions are not installed (make .venv/envoy)")
def test_envoy_s_own_definitions_know_every_field() -> None:
    text = json.dumps(envoy())
    assert as_envoy_reads(text).stdout == "attendant LEAST_REQUEST\n"
    misspelt = as_envoy_reads(text.replace("lb_policy", "lb_polizy"))
    assert misspelt.returncode != 0
    assert "lb_polizy" in misspelt.stderr
