"""What a rolling restart is made of: clients that end with it, proxies that cannot be stopped by what they say."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest

from bench.reliability import rolling
from deploy import envoy
from deploy.nginx import free_port, until_ended


def test_clients_end_with_the_block_whatever_ends_it() -> None:
    before, load = threading.active_count(), rolling.Load([])
    with pytest.raises(ZeroDivisionError), rolling.asking(free_port(), load, 3):
        _ = 1 / 0
    assert threading.active_count() == before


def test_a_proxy_that_says_more_than_a_pipe_holds_goes_on(tmp_path: Path) -> None:
    port = free_port()
    says = "import socket, sys; sys.stderr.write('x' * 10**6)"
    code = f"{says}; s = socket.create_server(('127.0.0.1', {port})); [s.accept() for _ in range(9)]"
    with until_ended([sys.executable, "-c", code], port, tmp_path / "log"):
        assert (tmp_path / "log").stat().st_size == 10**6


def test_one_that_does_not_start_is_told_with_what_it_said(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such file')"]
    with pytest.raises(RuntimeError, match="no such file"), until_ended(command, free_port(), tmp_path / "log"):
        pass


def test_envoy_gets_the_committed_file_with_the_servers_of_this_machine() -> None:
    read = json.loads(envoy.configuration([8001, 8002], 8000))["static_resources"]
    (cluster,) = read["clusters"]
    (group,) = cluster["load_assignment"]["endpoints"]
    found = [each["endpoint"]["address"]["socket_address"]["port_value"] for each in group["lb_endpoints"]]
    assert (found, cluster["lb_policy"]) == ([8001, 8002], "LEAST_REQUEST")
    assert read["listeners"][0]["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 8000}
