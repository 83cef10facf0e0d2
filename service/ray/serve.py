"""The HTTP application as Ray Serve replicas. Needs attendant-transformer[ray]; no other module imports this one.

    serve run attendant.service.ray.serve:build threads=2 replicas=2 max_replicas=8 bundle=/models/base

Arguments are the settings of `attendant serve` and the numbers of `Scale`. Each replica also listens on a port of its
own for what concerns it alone: /metrics, /readyz, /v1/reload. `python -m attendant.service.ray.serve` prints these
addresses as Prometheus reads them with file_sd.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import ray
import uvicorn
from fastapi import FastAPI
from ray import serve
from ray.serve.config import AutoscalingConfig, BackpressureConfig
from starlette.types import ASGIApp, Receive, Scope, Send

from attendant.service.engine.resources import MAX_ROWS, most_lanes
from attendant.service.errors import StartError
from attendant.service.http.app import create_app
from attendant.service.http.connection import protocol_class
from attendant.service.http.guard.admission import PROXIED
from attendant.service.http.server import bind
from attendant.service.http.wire.limits import ConnectionLimits
from attendant.service.settings import Settings, SettingsError, read_settings, variable
from attendant.service.watch import logs

PORTS = 100  # tried from --port on, since each replica on a machine needs its own
RUNNING_PER_CPU = 8  # requests, as in deploy/kubernetes/components/keda
ROOM_TO_REFUSE = 16  # requests beyond a full queue that still reach a replica, for its own 429 with Retry-After
WILDCARDS = ("0.0.0.0", "::")


@dataclass(frozen=True, kw_only=True)
class Scale:
    replicas: int = 1  # the fewest
    max_replicas: int = 0  # if above `replicas`: autoscale up to this number
    target_requests: int = 0  # ongoing in each replica, the target of autoscaling; 0: RUNNING_PER_CPU for each thread


def build(arguments: Mapping[str, Any]) -> serve.Application:
    """The Ray Serve application; SettingsError says what is wrong with the arguments."""
    given = {name: str(value) for name, value in arguments.items()}
    scale, others = _read_scale(given)
    known = {field.name for field in fields(Settings)}
    if unknown := sorted(set(others) - known):
        raise SettingsError([f"{name}: unknown setting; attendant serve --help lists them." for name in unknown], 2)
    return deployment(replica_settings(others), scale).bind()


def replica_settings(given: Mapping[str, str]) -> Settings:
    """Settings with a replica's defaults: 1 thread, any free port, a queue for a full batch or the largest request."""
    named = dict(given)
    _default(named, "threads", 1)
    _default(named, "port", 0)
    settings = read_settings(named, os.environ)
    if not settings.threads:
        raise SettingsError(["threads takes 1 or more here, not 0: Ray reserves as many CPUs for a replica."], 2)
    _default(named, "max_queue_requests", max(rows(settings), settings.max_inputs))
    return read_settings(named, os.environ)


def _default(named: dict[str, str], name: str, value: int) -> None:
    if variable(name) not in os.environ:
        named.setdefault(name, str(value))


def rows(settings: Settings) -> int:
    """The most hypotheses that a replica decodes at once."""
    lanes = min(settings.lanes or most_lanes(settings.threads), settings.threads)
    return lanes * (settings.max_rows or MAX_ROWS)


def _read_scale(given: Mapping[str, str]) -> tuple[Scale, dict[str, str]]:
    names = {field.name for field in fields(Scale)}
    numbers = {name: given[name] for name in sorted(names & set(given))}
    wrong = [f"{name} takes a whole number, not {text!r}." for name, text in numbers.items() if not _whole(text)]
    if wrong:
        raise SettingsError(wrong, 2)
    scale = Scale(**{name: int(text) for name, text in numbers.items()})
    return scale, {name: value for name, value in given.items() if name not in names}


def _whole(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def deployment(settings: Settings, scale: Scale) -> Any:
    """The Ray Serve deployment, limited so that the engine's queue is full and answers 429 before Ray's own is."""

    def make_app() -> ASGIApp:
        return ProxySide(replica_app(settings))

    queue = settings.max_queue_requests
    options: dict[str, Any] = {"num_replicas": scale.replicas}
    if scale.max_replicas > scale.replicas:
        target = scale.target_requests or RUNNING_PER_CPU * settings.threads
        scaling = AutoscalingConfig(
            min_replicas=scale.replicas, max_replicas=scale.max_replicas, target_ongoing_requests=target
        )
        options = {"autoscaling_config": scaling}
    return serve.deployment(
        serve.ingress(make_app)(Replica),
        name="attendant",
        max_ongoing_requests=rows(settings) + queue + ROOM_TO_REFUSE,
        max_queued_requests=queue,  # for each proxy, once every replica has max_ongoing_requests
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1),
        graceful_shutdown_timeout_s=settings.grace_seconds,
        ray_actor_options={"num_cpus": settings.threads},
        **options,
    )


class Replica:
    """Methods that Ray calls. `serve.ingress` adds `app`, and passes HTTP requests on to it."""

    app: ProxySide

    def check_health(self) -> None:
        """Ray replaces a replica for which this raises."""
        self.app.application.state.parts.models.check_ready()

    def address(self) -> str:
        """host:port where this replica alone listens."""
        return str(self.app.application.state.address)


class ProxySide:
    """The application behind Ray's proxy: it refuses the routes that concern one replica."""

    def __init__(self, application: FastAPI) -> None:
        self.application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.application({**scope, PROXIED: True}, receive, send)


def replica_app(settings: Settings) -> FastAPI:
    """One replica's application: its startup ends once the model is ready and the replica's own port is open."""
    failures: list[Exception] = []
    app = create_app(settings, on_failure=failures.append)
    inner = app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def lifespan(application: Any) -> AsyncIterator[Any]:
        logs.configure(settings)
        async with inner(application) as state:
            while not app.state.parts.models.ready:
                if failures:
                    raise failures[0]
                await asyncio.sleep(0.02)
            async with own_port(app, settings):
                yield state

    app.router.lifespan_context = lifespan
    return app


@contextlib.asynccontextmanager
async def own_port(app: FastAPI, settings: Settings) -> AsyncIterator[None]:
    listening = bind_first(settings.host, settings.port)
    host, port = listening.getsockname()[:2]
    app.state.address = f"{ray.util.get_node_ip_address() if host in WILDCARDS else host}:{port}"
    refused = app.state.parts.metrics.connections_refused.inc
    limits = ConnectionLimits(settings.max_connections, settings.header_seconds, settings.send_seconds, refused)
    config = uvicorn.Config(
        app, lifespan="off", http=protocol_class(limits), ws="none", log_config=None, access_log=False
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listening]))
    try:
        yield
    finally:
        server.should_exit = server.force_exit = True
        await serving


def bind_first(host: str, port: int) -> socket.socket:
    """A socket that listens on the first free port from this one on; 0: on any."""
    for each in range(port, min(port + PORTS, 65536) if port else 1):
        with contextlib.suppress(StartError):
            return bind(host, each)
    return bind(host, port)


def addresses(name: str = "default") -> list[str]:
    """host:port of every replica of an application on the cluster that this process has joined."""
    found: list[str] = serve.get_app_handle(name).broadcast("address").results(timeout_s=30)
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m attendant.service.ray.serve", description="Targets for Prometheus."
    )
    parser.add_argument("--name", default="default", help="of the Ray Serve application (default: default)")
    parser.add_argument("--address", default="auto", help="of the Ray cluster (default: auto)")
    options = parser.parse_args()
    ray.init(address=options.address, log_to_driver=False, logging_level="error")
    print(json.dumps([{"targets": addresses(options.name)}]))


if __name__ == "__main__":
    main()
