"""What can happen to a service while clients ask: each fault is a function that does it for some seconds.

Some are done from outside, by signals, limits and connections; some by a switch in the server's process
(`bench.reliability.chaos_server`).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from attendant.service.settings import DEFAULT_BUNDLE
from bench.http.servers import HOST, ROOT

LARGE = json.dumps({"inputs": ["abcdefghij"] * 60, "beam_size": 8, "num_hypotheses": 8, "logprobs": True}).encode()


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
    def switched(self, fault: str) -> Iterator[None]:
        switch = self.directory / "fault"
        switch.write_text(fault)
        try:
            yield
        finally:
            switch.unlink()


def start(directory: Path) -> Service:
    command = [sys.executable, "-m", "bench.reliability.chaos_server", str(directory / "bundle"), str(directory)]
    with (directory / "log").open("ab") as log:
        # A library in Rust that is out of memory while it writes its backtrace waits for itself.
        environment = {**os.environ, "RUST_BACKTRACE": "0"}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    return Service(process, int(line.split(f"http://{HOST}:")[1].split(":")[0]), directory)


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
    with service.switched("raise"):
        time.sleep(seconds)


def hang_steps(service: Service, seconds: float) -> None:
    with service.switched("hang"):
        time.sleep(seconds)


def spoil_steps(service: Service, seconds: float) -> None:
    with service.switched("nan"):
        time.sleep(seconds)


def reload_often(service: Service, seconds: float) -> None:
    """The bundle is replaced before each reload, while it is under way, and after it."""
    for _ in range(3):
        _replace_bundle(service, b"")
        service.send(signal.SIGHUP)
        _replace_bundle(service, b"")
        time.sleep(seconds / 3)
        _replace_bundle(service, b"")


def fill_disk(service: Service, seconds: float) -> None:
    """No byte can be written to any file, the log's among them."""
    before = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (0, before[1]))
    time.sleep(seconds)
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, before)


def fail_disk(service: Service, seconds: float) -> None:
    """The bundle's files cannot be read when it is loaded again; afterwards they can."""
    _replace_bundle(service, b"")
    with service.switched("disk"):
        service.send(signal.SIGHUP)
        time.sleep(seconds)
    service.send(signal.SIGHUP)
    time.sleep(seconds)


def start_no_threads(service: Service, seconds: float) -> None:
    """No thread starts, while a reload and long answers want some."""
    _replace_bundle(service, b"")
    with service.switched("threads"):
        service.send(signal.SIGHUP)
        opened = [_send(service, _request(LARGE)) for _ in range(5)]
        time.sleep(seconds)
        for raw in opened:
            raw.close()


def step_clock(service: Service, seconds: float) -> None:
    """The time of day jumps a day ahead and back, over and over."""
    with service.switched("clock"):
        time.sleep(seconds)


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
    "a full disk": (fill_disk, set()),
    "a disk that returns errors": (fail_disk, set()),
    "no threads": (start_no_threads, {"429", "500", "503"}),
    "a clock that jumps": (step_clock, set()),
    "bundles replaced before, during and after reloads": (reload_often, set()),
    "reloads of damaged bundles": (reload_damaged, set()),
    "SIGTERM": (terminate, {"cut", "503"}),
    "SIGKILL": (kill, {"cut"}),
}
