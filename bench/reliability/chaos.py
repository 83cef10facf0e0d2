"""Faults, one after the other, in a service under load; after each it must be as if nothing had been.

    python -m bench.reliability.chaos [--seconds 3] [--only NAME]

While clients ask, one fault happens. Every request must have exactly one outcome: its whole answer, that of an idle
service, a documented error, or, where the fault cuts connections, an end. Then the service must count as many requests
as were sent, have its gauges at zero, and answer as before. One that was ended must end with 0, and a new one answers
as before. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attendant.service.settings import DEFAULT_BUNDLE
from bench.http.servers import HOST, ROOT
from bench.reliability.watch import gauges_at_rest, known_answer, metrics, total
from bench.report.record import RESULTS_HERE, write_record

MODULE = "bench.reliability.chaos"
CLIENTS = 6
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/generate", {"inputs": "attendant"}),
    ("/v1/generate", {"inputs": ["transformer", "facade"], "beam_size": 4, "num_hypotheses": 2}),
    ("/v1/generate", {"inputs": "serves", "stream": True}),
    ("/v1/next-token", {"source": "attendant", "top_k": 0}),
    ("/v1/score", {"source": "cat", "target": "K AE1 T"}),
    ("/v1/generate", {"inputs": "attention", "temperature": 1.0, "seed": 3}),
]
LARGE = json.dumps({"inputs": ["abcdefghij"] * 60, "beam_size": 8, "num_hypotheses": 8, "logprobs": True}).encode()
DOCUMENTED = {429, 500, 503, 504}  # errors that a fault may give


@dataclass
class Service:
    process: subprocess.Popen[str]
    port: int
    directory: Path  # with the bundle, and the switch of faults

    @property
    def bundle(self) -> Path:
        return self.directory / "bundle"

    def send(self, which: signal.Signals) -> None:
        self.process.send_signal(which)

    def wait(self) -> None:
        self.process.wait(60)
        if self.process.stdout is not None:
            self.process.stdout.close()

    @contextlib.contextmanager
    def steps(self, fault: str) -> Iterator[None]:
        switch = self.directory / "fault"
        switch.write_text(fault)
        yield
        switch.unlink()


@dataclass
class Load:
    """What clients sent, and what became of it."""

    expected: list[Any]
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)


def start(directory: Path) -> Service:
    command = [sys.executable, "-m", "bench.reliability.chaos_server", str(directory / "bundle"), str(directory)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    return Service(process, int(line.split(f"http://{HOST}:")[1].split(":")[0]), directory)


def exchange(port: int, place: int, timeout: float = 60.0) -> tuple[int, Any]:
    """A status with the answer, without its times; a stream that broke off raises HTTPException."""
    path, body = BODIES[place]
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        connection.request("POST", path, json.dumps(body))
        answer = connection.getresponse()
        text = answer.read().decode()
        if not text.startswith("event:"):
            found = json.loads(text)
        elif "event: done" in text or "event: error" in text:
            found = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
            if "event: error" in text:
                return 500, found
        else:
            raise http.client.IncompleteRead(text.encode())
        for each in found if isinstance(found, list) else [found]:
            each.pop("timing", None)
        return answer.status, found
    finally:
        connection.close()


def ask(port: int, load: Load, first: int) -> None:
    place = first
    while not load.stop.is_set():
        place = (place + 1) % len(BODIES)
        try:
            status, answer = exchange(port, place)
        except (OSError, http.client.HTTPException, ValueError) as error:
            load.outcomes["cut" if not isinstance(error, TimeoutError) else "hung"] += 1
            time.sleep(0.05)
            continue
        load.outcomes[str(status)] += 1
        if status == 200 and answer != load.expected[place]:
            errors = [each.get("error") for each in answer.get("outputs", [])] if isinstance(answer, dict) else []
            if not any(errors):  # a text of its own outcome
                load.wrong.append(f"{BODIES[place]}: {answer!r:.300}")
        elif status != 200 and status not in DOCUMENTED:
            load.wrong.append(f"{BODIES[place]}: {status} {answer!r:.300}")


@contextlib.contextmanager
def under_load(service: Service, expected: list[Any]) -> Iterator[Load]:
    load = Load(expected)
    threads = [threading.Thread(target=ask, args=(service.port, load, first)) for first in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        load.stop.set()
        for thread in threads:
            thread.join()


def _send(service: Service, data: bytes) -> socket.socket:
    raw = socket.create_connection((HOST, service.port), 20)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.sendall(data)
    return raw


def _request(body: bytes) -> bytes:
    return b"POST /v1/generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def vanish(service: Service, seconds: float) -> None:
    """Clients that reset their connections at any moment."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for cut in (10, 60, None):
            raw = _send(service, _request(LARGE)[:cut])
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            raw.close()
        time.sleep(0.02)


def read_nothing(service: Service, seconds: float) -> None:
    """Clients that send the largest requests and read no byte of the answers."""
    opened = [_send(service, _request(LARGE)) for _ in range(10)]
    time.sleep(seconds)
    for raw in opened:
        raw.close()


def send_slowly(service: Service, seconds: float) -> None:
    """Clients that send a byte at a time, of headers and of bodies."""
    whole = _request(LARGE)
    opened = [(_send(service, whole[:at]), at) for at in (1, 30, whole.index(b"\r\n\r\n") + 4) for _ in range(10)]
    for step in range(int(seconds * 10)):
        for raw, at in opened:
            with contextlib.suppress(OSError):
                raw.send(whole[at + step : at + step + 1])
        time.sleep(0.1)
    for raw, _ in opened:
        raw.close()


def stop_and_continue(service: Service, seconds: float) -> None:
    for _ in range(3):
        service.send(signal.SIGSTOP)
        time.sleep(seconds / 6)
        service.send(signal.SIGCONT)
        time.sleep(seconds / 6)


def use_up_descriptors(service: Service, seconds: float) -> None:
    """No file can be opened, and no connection accepted, for a while."""
    before = resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE)
    opened = len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))
    resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (opened, before[1]))
    raws = [socket.create_connection((HOST, service.port), 20) for _ in range(30)]
    time.sleep(seconds)
    resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, before)
    for raw in raws:
        raw.close()


def use_up_memory(service: Service, seconds: float) -> None:
    """Allocations fail in the process for a while."""
    before = resource.prlimit(service.process.pid, resource.RLIMIT_AS)
    size = int(Path(f"/proc/{service.process.pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.prlimit(service.process.pid, resource.RLIMIT_AS, (size, before[1]))
    opened = [_send(service, _request(LARGE)) for _ in range(10)]
    time.sleep(seconds)
    resource.prlimit(service.process.pid, resource.RLIMIT_AS, before)
    for raw in opened:
        raw.close()


def fail_steps(service: Service, seconds: float) -> None:
    with service.steps("raise"):
        time.sleep(seconds)


def hang_steps(service: Service, seconds: float) -> None:
    with service.steps("hang"):
        time.sleep(seconds)


def spoil_steps(service: Service, seconds: float) -> None:
    with service.steps("nan"):
        time.sleep(seconds)


def reload_often(service: Service, seconds: float) -> None:
    for _ in range(3):
        _replace_bundle(service, b"")
        service.send(signal.SIGHUP)
        time.sleep(seconds / 3)


def reload_damaged(service: Service, seconds: float) -> None:
    """A bundle that is damaged is refused, and the one that runs goes on."""
    _replace_bundle(service, b"damaged")
    service.send(signal.SIGHUP)
    time.sleep(seconds / 2)
    (service.bundle / "manifest.json").unlink()
    service.send(signal.SIGHUP)
    time.sleep(seconds / 2)
    _replace_bundle(service, b"")


def _replace_bundle(service: Service, damage: bytes) -> None:
    """Another copy of the embedded bundle in place of the one that runs, with `damage` behind a tokenizer."""
    beside, old = service.directory / "new", service.directory / "old"
    shutil.copytree(DEFAULT_BUNDLE, beside)
    with (beside / "tokenizers" / "source.json").open("ab") as file:
        file.write(damage)
    service.bundle.rename(old)
    beside.rename(service.bundle)
    shutil.rmtree(old)


def terminate(service: Service, seconds: float) -> None:
    time.sleep(seconds / 2)
    service.send(signal.SIGTERM)
    service.wait()


def kill(service: Service, seconds: float) -> None:
    time.sleep(seconds / 2)
    service.send(signal.SIGKILL)
    service.wait()


Fault = Callable[[Service, float], None]
FAULTS: dict[str, tuple[Fault, set[str]]] = {  # with the outcomes that clients may see beside 200
    "nothing": (lambda _, seconds: time.sleep(seconds), set()),
    "clients that vanish": (vanish, {"429"}),
    "clients that read nothing": (read_nothing, {"429"}),
    "clients that send a byte at a time": (send_slowly, set()),
    "SIGSTOP and SIGCONT": (stop_and_continue, set()),
    "no file descriptors": (use_up_descriptors, {"cut", "500", "503"}),
    "no memory": (use_up_memory, {"cut", "429", "500", "503"}),
    "steps that raise": (fail_steps, {"500"}),
    "steps that hang": (hang_steps, {"504"}),
    "NaN from the kernels": (spoil_steps, {"500"}),
    "reloads": (reload_often, set()),
    "reloads of damaged bundles": (reload_damaged, set()),
    "SIGTERM": (terminate, {"cut", "503"}),
    "SIGKILL": (kill, {"cut"}),
}


def survive(name: str, service: Service, expected: list[Any], seconds: float) -> dict[str, Any]:
    """One fault under load, and what was found to be wrong after it."""
    fault, may = FAULTS[name]
    known, before = known_answer(service.port), metrics(service.port)
    with under_load(service, expected) as load:
        time.sleep(0.3)
        fault(service, seconds)
        time.sleep(0.3)
    odd = {each: count for each, count in load.outcomes.items() if each not in {"200", *may}}
    wrong = [*load.wrong[:3], *(f"{count} x {each}" for each, count in odd.items())]
    ended = service.process.poll()
    if name in ("SIGTERM", "SIGKILL"):
        if ended != (0 if name == "SIGTERM" else -signal.SIGKILL):
            wrong.append(f"it ended with {ended}")
        return _row(name, load, wrong)
    if ended is not None:
        return _row(name, load, [*wrong, f"the service ended with {ended}"])
    if not gauges_at_rest(service.port):
        wrong.append("gauges are not at zero")
    after = metrics(service.port)
    answered = sum(count for each, count in load.outcomes.items() if each not in ("cut", "hung"))
    counted = sum(total(after, COUNTED, endpoint=each) - total(before, COUNTED, endpoint=each) for each in ENDPOINTS)
    if counted < answered or (not {"cut"} & load.outcomes.keys() and name in EXACT and counted != answered):
        wrong.append(f"{counted:.0f} requests were counted, and {answered} answered")
    if known_answer(service.port) != known:
        wrong.append("known requests are answered otherwise")
    return _row(name, load, wrong)


COUNTED = "attendant_requests_total"
ENDPOINTS = sorted({path for path, _ in BODIES})
EXACT = {"nothing", "SIGSTOP and SIGCONT", "steps that raise", "steps that hang", "NaN from the kernels", "reloads"}


def _row(name: str, load: Load, wrong: list[str]) -> dict[str, Any]:
    outcomes = dict(sorted(load.outcomes.items()))
    return {"name": name, "requests": sum(outcomes.values()), "outcomes": outcomes, "wrong": wrong}


def run(names: list[str], seconds: float) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        shutil.copytree(DEFAULT_BUNDLE, directory / "bundle")
        service = start(directory)
        idle = [exchange(service.port, place) for place in range(len(BODIES))]
        assert {status for status, _ in idle} == {200}, idle
        expected = [answer for _, answer in idle]
        try:
            for name in names:
                yield survive(name, service, expected, seconds)
                if service.process.poll() is not None:
                    service = start(directory)
                    again = [exchange(service.port, place)[1] for place in range(len(BODIES))]
                    assert again == expected, "a new service answers otherwise"
        finally:
            service.process.terminate()
            service.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each fault")
    parser.add_argument("--only", choices=FAULTS)
    given = parser.parse_args()
    rows = []
    for row in run([given.only] if given.only else list(FAULTS), given.seconds):
        rows.append(row)
        shown = ", ".join(f"{count} x {each}" for each, count in row["outcomes"].items())
        print(f"{row['name']:36}{row['requests']:>7}  {shown}", flush=True)
        print("".join(f"    WRONG: {each}\n" for each in row["wrong"]), end="")
    if not given.only:
        write_record(RESULTS_HERE / "chaos.json", MODULE, rows)
    sys.exit(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    main()
