"""Resident memory of a server in which three models take turns on one place: what is left after they have.

python -m bench.profile.turns
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from attendant.service.settings import DEFAULT_BUNDLE

MODELS, CLIENTS, AFTER_SECONDS = "abc", 16, 6.0
BODY = {"inputs": ["encyclopedia", "transformer"] * 4, "beam_size": 4}


def resident(pid: int) -> float:
    """Megabytes."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) * 1024 / 1e6


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def connect(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=120)


def ask(connection: http.client.HTTPConnection, model: str) -> None:
    connection.request("POST", "/v1/generate", json.dumps({**BODY, "model": model}))
    connection.getresponse().read()


def wait_until_ready(port: int) -> None:
    for _ in range(240):
        try:
            connection = connect(port)
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise SystemExit("the server did not become ready.")


def take_turns(port: int, seconds: float) -> int:
    """Every client asks for the models by turns; how many requests were answered."""
    end, answered = time.monotonic() + seconds, [0] * CLIENTS

    def client(number: int) -> None:
        connection = connect(port)
        while time.monotonic() < end:
            ask(connection, MODELS[(number + answered[number]) % len(MODELS)])
            answered[number] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(answered)


def main() -> None:
    parser = argparse.ArgumentParser(description="Resident memory while models take turns.")
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        for name in MODELS:
            shutil.copytree(DEFAULT_BUNDLE, Path(directory) / name)
        words = ["serve", "--models", directory, "--max-loaded", "1", "--load", "lazy", "--log-level", "error"]
        server = subprocess.Popen([sys.executable, "-m", "attendant", *words, "--port", str(port)])
        try:
            wait_until_ready(port)
            ask(connect(port), MODELS[0])
            one = resident(server.pid)
            answered = take_turns(port, options.seconds)
            time.sleep(AFTER_SECONDS)
            print(f"one model: {one:.0f} MB; after {answered} requests by turns: {resident(server.pid):.0f} MB")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
