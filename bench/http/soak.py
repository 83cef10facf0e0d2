"""A server under mixed requests for some minutes: its memory, and what the garbage collector's settings are worth.

    python -m bench.http.soak [--seconds 60] [--clients 8] [--plain]

Prints requests a second, their 50th and 99th percentile, the server's processor time for one, and its resident memory
in the first and in the last third; exits with 1 if that grew by more than a tenth. With --plain the collector is left
as Python has it. The same texts come in the same order, from a fixed seed; the embedded model answers.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

MOST_GROWTH = 1.1
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SERVE = """
import sys
from attendant.service.http import garbage
from attendant.service.http.server import Server
from attendant.service.settings import Settings
settle = None if sys.argv[1] == "plain" else garbage.settle
Server(Settings(port=0, log_level="warning"), announce=lambda line: print(line, flush=True), settle=settle).run()
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.http.soak", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    command = [sys.executable, "-c", SERVE, "plain" if given.plain else "settled"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline().split("http://127.0.0.1:")[1].split(":")[0])
            before = processor_seconds(process.pid)
            times, memory = soak(process.pid, port, given.seconds, given.clients)
            spent = processor_seconds(process.pid) - before
        finally:
            process.terminate()
    first, last = fmean(memory[: len(memory) // 3]), fmean(memory[-len(memory) // 3 :])
    cut = quantiles(times, n=100)
    print(
        f"{len(times) / given.seconds:.0f} requests/s, p50 {1e3 * cut[49]:.1f} ms, p99 {1e3 * cut[98]:.1f} ms, "
        f"{1e3 * spent / len(times):.2f} ms of a processor each; {first:.1f} MB, then {last:.1f} MB"
    )
    sys.exit(last > MOST_GROWTH * first)


def soak(process: int, port: int, seconds: float, clients: int) -> tuple[list[float], list[float]]:
    """The seconds of every request, and the resident megabytes of the server, ten times a second."""
    until, times, memory = time.monotonic() + seconds, list[float](), list[float]()
    threads = [threading.Thread(target=ask, args=(port, seed, until, times)) for seed in range(clients)]
    for thread in threads:
        thread.start()
    while time.monotonic() < until:
        memory.append(resident_megabytes(process))
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    return times, memory


def ask(port: int, seed: int, until: float, times: list[float]) -> None:
    rng, connection = random.Random(seed), http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while time.monotonic() < until:
        path, body = request(rng)
        started = time.monotonic()
        connection.request("POST", path, json.dumps(body))
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        times.append(time.monotonic() - started)
    connection.close()


def request(rng: random.Random) -> tuple[str, dict[str, Any]]:
    words = ["".join(rng.choices(LETTERS, k=rng.randint(2, 12))) for _ in range(rng.choice([1, 1, 1, 8]))]
    kind = rng.random()
    if kind < 0.1:
        return "/v1/next-token", {"source": words[0], "top_k": 0}
    if kind < 0.2:
        return "/v1/generate", {"inputs": words[0], "stream": True}
    return "/v1/generate", {"inputs": words, "beam_size": rng.choice([1, 1, 4]), "logprobs": True}


def processor_seconds(process: int) -> float:
    """That a process on Linux has computed for."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_megabytes(process: int) -> float:
    """Of a process on Linux."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


if __name__ == "__main__":
    main()
