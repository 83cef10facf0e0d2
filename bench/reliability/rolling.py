"""Two servers behind a proxy, restarted one after the other under load: no client may see an error.

    python -m bench.reliability.rolling [--parts nginx HAProxy Envoy] [--restarts 8]

Each proxy runs with our configuration (deploy/proxies). Clients keep their connections and ask for texts, searches and
streams; each answer must be that of an idle service. A server is stopped by SIGTERM, must end with 0, is started again
at its port, and when it is ready and the proxy has had time to see it, the other one follows.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from bench.http.servers import HOST, ROOT, free_port
from bench.reliability.watch import ask
from bench.report.record import RESULTS_HERE, merged, write_record
from deploy import envoy, haproxy, nginx

MODULE = "bench.reliability.rolling"
CLIENTS = 6
WITHIN = 120.0  # seconds for a server to be ready, or to end
BODIES: list[dict[str, Any]] = [
    {"inputs": "attendant"},
    {"inputs": ["transformer", "facade"] * 8, "beam_size": 8, "num_hypotheses": 2},
    {"inputs": "serves", "stream": True},
    {"inputs": "onomatopoeia", "stream": True, "beam_size": 4},
    {"inputs": ["colonel"] * 40, "beam_size": 4},
]
Proxy = Callable[[list[int]], AbstractContextManager[int]]
PROXIES: dict[str, tuple[Callable[[], str | None], Proxy, float]] = {  # and seconds after a server is ready, in
    "nginx": (nginx.program, nginx.nginx, 0.5),  # which the proxy has seen that too
    "HAProxy": (haproxy.program, haproxy.haproxy, 2.0),  # it checks every 0.5 s
    "Envoy": (envoy.program, envoy.envoy, 7.0),  # every 5 s
}


class Process(Protocol):
    def terminate(self) -> None: ...

    def wait(self, timeout: float) -> int: ...


Start = Callable[[int], Process]


@dataclass
class Load:
    """What clients saw."""

    expected: list[Any]
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=PROXIES, default=list(PROXIES), help="others stay in the record")
    parser.add_argument("--restarts", type=int, default=8, help="of both servers together")
    given = parser.parse_args()
    rows = []
    for name in given.parts:
        if PROXIES[name][0]() is None:
            print(f"{name} is not installed, and left out.")
            continue
        rows.append(restart(name, given.restarts))
        print(json.dumps(rows[-1]), flush=True)
    path = RESULTS_HERE / "rolling.json"
    write_record(path, MODULE, merged(path, rows, PROXIES))
    sys.exit(any(row["wrong"] for row in rows))


def restart(name: str, restarts: int, clients: int = CLIENTS, starting: Start | None = None) -> dict[str, Any]:
    """What clients of this proxy saw while its two servers were restarted by turns."""
    starting = starting or start
    _, proxy, settle = PROXIES[name]
    ports = [free_port(), free_port()]
    processes = [starting(port) for port in ports]
    try:
        for port in ports:
            wait_until_ready(port)
        with proxy(ports) as port:
            load = Load([Client(port).ask(body) for body in BODIES])
            with asking(port, load, clients):
                for turn in range(restarts):
                    time.sleep(settle)
                    processes[turn % 2].terminate()
                    code = processes[turn % 2].wait(WITHIN)
                    load.wrong += [f"a server ended with {code}"] if code else []
                    processes[turn % 2] = starting(ports[turn % 2])
                    wait_until_ready(ports[turn % 2])
    finally:
        for process in processes:
            process.terminate()
            process.wait(WITHIN)
    outcomes = dict(sorted(load.outcomes.items()))
    requests = sum(outcomes.values())
    return {"name": name, "restarts": restarts, "requests": requests, "outcomes": outcomes, "wrong": load.wrong[:5]}


@contextlib.contextmanager
def asking(port: int, load: Load, clients: int) -> Iterator[None]:
    """Clients that ask until the block ends, whatever ends it."""
    threads = [threading.Thread(target=_ask, args=(port, load, first)) for first in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        load.stop.set()
        for thread in threads:
            thread.join()


def start(port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "attendant", "serve", "--port", str(port), "--log-level", "error"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)


def wait_until_ready(port: int) -> None:
    until = time.monotonic() + WITHIN
    while time.monotonic() < until:
        try:
            if ask(port, "/readyz")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"the server at {port} was not ready within {WITHIN:.0f} seconds.")


class Client:
    """Keeps its connection; an answer is compared without its times."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection(HOST, port, timeout=WITHIN)

    def ask(self, body: dict[str, Any]) -> Any:
        self.connection.request("POST", "/v1/generate", json.dumps(body))
        answer = self.connection.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            raise ValueError(f"{answer.status}: {text:.200}")
        lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")] or [text]
        if body.get("stream") and "event: done" not in text:
            raise ValueError(f"a stream without its end: {text[-200:]}")
        return [{key: value for key, value in json.loads(line).items() if key != "timing"} for line in lines]


def _ask(port: int, load: Load, first: int) -> None:
    client, place = Client(port), first
    while not load.stop.is_set():
        place = (place + 1) % len(BODIES)
        try:
            answer = client.ask(BODIES[place])
        except (OSError, http.client.HTTPException, ValueError) as error:
            load.outcomes["error"] += 1
            load.wrong.append(f"{BODIES[place]!s:.60}: {type(error).__name__} {error}")
            client.connection.close()
            time.sleep(0.05)
            continue
        load.outcomes["streamed" if BODIES[place].get("stream") else "whole"] += 1
        if answer != load.expected[place]:
            load.wrong.append(f"{BODIES[place]!s:.60}: another answer")


if __name__ == "__main__":
    main()
