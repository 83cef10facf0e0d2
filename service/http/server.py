"""The server process: its socket, its signals, and a stop that drops no accepted request.

SIGTERM, SIGINT    not ready any more; accepted requests finish within the grace period; whoever is connected by then is
                   answered; then it exits
the same again     it exits at once
SIGHUP             reload what has changed; with a controlling terminal, which sends it on closing, stop as by SIGTERM
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from attendant.service.errors import ServiceError, StartError
from attendant.service.http.app import create_app
from attendant.service.http.connection import make_protocol, protocol_class
from attendant.service.http.wire.limits import ConnectionLimits
from attendant.service.models.model import LoadEngine
from attendant.service.models.registry import Models
from attendant.service.settings import Settings

BACKLOG = 2048  # connections not accepted yet
REFUSED_SECONDS = 2  # for connections over the limit to receive their answer
LAST_BYTES_SECONDS = 5  # for answers to reach slow clients, once there is nothing more to compute

log = logging.getLogger("attendant")


class Server(uvicorn.Server):
    def __init__(
        self,
        settings: Settings,
        load: LoadEngine | None = None,
        announce: Callable[[str], None] = print,
        settle: Callable[[], None] | None = None,
    ) -> None:
        """`settle` is called whenever engines have come or gone, as once it is ready: `garbage.settle`, in a process
        that has nothing else to do.
        """
        self._settle, self._settled_for = settle, list[int]()
        self.app: FastAPI = create_app(settings, load=load, on_failure=self._fail)
        refused = self.app.state.parts.metrics.connections_refused.inc
        limits = ConnectionLimits(
            settings.max_connections, settings.header_seconds, settings.send_seconds, refused, lambda: self.models.ready
        )
        self._limits = limits
        config = uvicorn.Config(
            self.app,
            lifespan="on",
            http=protocol_class(limits),
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=settings.keep_alive_seconds,
            timeout_graceful_shutdown=LAST_BYTES_SECONDS,
            backlog=BACKLOG,
        )
        super().__init__(config)
        self.app.state.parts.metrics.connections.set_function(lambda: len(self.server_state.connections))
        self.failure: Exception | None = None
        self._settings, self._announce = settings, announce
        self._announced = self._stop = self._reload = False
        self._stopping: asyncio.Task[None] | None = None
        self._reloads: set[asyncio.Task[None]] = set()
        self.address = ""

    @property
    def models(self) -> Models:
        models: Models = self.app.state.parts.models
        return models

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop; raises what kept the models from being loaded."""
        sockets = sockets or [bind(self._settings.host, self._settings.port)]
        self.address = _url(sockets[0])
        super().run(sockets)
        if self.failure is not None:
            raise self.failure

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """First signal: request a graceful stop. Second: exit at once."""
        if self._stop:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
            os._exit(128 + sig)  # reached as PID 1 of a container, where the kernel ignores a signal's default action
        self._stop = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGHUP"):
                yield
                return
            ends = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and has_terminal()  # nohup ignores it
            before = signal.signal(signal.SIGHUP, self.handle_exit if ends else self.handle_hangup)
            try:
                yield
            finally:
                signal.signal(signal.SIGHUP, before)

    def handle_hangup(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._reload = True

    async def on_tick(self, counter: int) -> bool:
        if self._stop and self._stopping is None:
            self._stopping = asyncio.create_task(self._drain())
        if self._reload:
            self._reload = False
            task = asyncio.create_task(self._reload_bundle())
            self._reloads.add(task)
            task.add_done_callback(self._reloads.discard)
        if self.models.ready and not self._announced:
            self._announced = True
            self._announce(f"Attendant listens on {self.address}: {self._greeting()}.")
        if self._settle is not None and (engines := [*map(id, self.models.engines())]) != self._settled_for:
            self._settled_for = engines
            self._settle()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listener, with everyone who had connected accepted; then answer them, and end the connections."""
        self._limits.stopping = True
        await self._close_listener(sockets or [])
        for _ in range(REFUSED_SECONDS * 100):
            if not self._limits.refused:
                break
            await asyncio.sleep(0.01)
        await super().shutdown(sockets)

    async def _close_listener(self, sockets: list[socket.socket]) -> None:
        """The copies keep the queue of connections that are not accepted yet, which would be reset with its socket."""
        copies = [listening.dup() for listening in sockets]
        for server in self.servers:
            server.close()
        for listening in sockets:
            listening.close()
        await asyncio.sleep(0)  # uvloop closes in its next iteration
        waiting = [connection for copy in copies for connection in _accept_all(copy)]
        for copy in copies:
            copy.close()
        loop = asyncio.get_running_loop()
        for connection in waiting:
            await loop.connect_accepted_socket(lambda: make_protocol(self), connection)

    async def _drain(self) -> None:
        log.info("stopping: finishing %d requests within %g s", self._active(), self._settings.grace_seconds)
        await self.models.close(self._settings.grace_seconds)
        for _ in range(LAST_BYTES_SECONDS * 100):
            if not self._active():
                break
            await asyncio.sleep(0.01)
        self.should_exit = True

    async def _reload_bundle(self) -> None:
        try:
            await self.models.reload()
        except ServiceError as error:
            log.error("reload: %s", error)
        except Exception:
            log.exception("reload failed")

    def _active(self) -> int:
        return int(self.app.state.traffic.active)

    def _fail(self, error: Exception) -> None:
        self.failure, self.should_exit = error, True

    def _greeting(self) -> str:
        """The models, and what computes those that are loaded."""
        parts = []
        for model in self.models.list():
            served = model.served
            if served is None:
                parts.append(f"model {model.name}, {model.state}")
                continue
            described = served.description
            threads = "1 thread" if described.threads == 1 else f"{described.threads} threads"
            parts.append(f"model {model.name}, {described.precision} on {described.provider}, {threads}")
        return "; ".join(parts)


def _accept_all(listening: socket.socket) -> Iterator[socket.socket]:
    """Connections until none waits."""
    listening.setblocking(False)
    while True:
        try:
            connection, _ = listening.accept()
        except ConnectionAbortedError:
            continue
        except OSError:  # none waits, or there is no file descriptor left
            return
        yield connection


def has_terminal() -> bool:
    """Whether a terminal controls the process, which sends SIGHUP when it is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; StartError if there is none."""
    listening = None
    try:
        found = socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        # The protocol is named because asyncio sets TCP_NODELAY only on a socket whose protocol says TCP.
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
        return listening
    except UnicodeError:
        raise StartError(f"cannot listen on {host!r}: it is no name of a host; see --host.") from None
    except OSError as error:
        if listening is not None:
            listening.close()
        if error.errno == errno.EADDRINUSE:
            raise StartError(f"port {port} of {host} is in use; choose another with --port.") from None
        raise StartError(f"cannot listen on {host}, port {port}: {error.strerror}; see --host and --port.") from None


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
