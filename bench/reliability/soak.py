"""An hour of everything there is: memory, descriptors, threads, latency and answers stay as they were.

    python -m bench.reliability.soak [--seconds 3600] [--clients 6]

Two copies of the embedded bundle are served with keys and LibreTranslate's API. Clients ask for every route from a
fixed seed; each answer must be the one that the same request had first. Every minute a model is reloaded, by SIGHUP or
over HTTP, and some clients leave before their answer. Resident memory, as the median of each interval between reloads,
is fitted by least squares on the requests so far, the first sixth left out. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from attendant.service.settings import DEFAULT_BUNDLE
from bench.http.servers import HOST, Server, serving
from bench.reliability.soak_requests import GLOSSARY, MODELS, Request, requests
from bench.reliability.watch import gauges_at_rest, metrics, total
from bench.report.record import RESULTS_HERE, write_record

MODULE = "bench.reliability.soak"
KEY, ADMIN_KEY = "soak-key", "soak-admin-key"
AUTHORIZED = {"authorization": f"Bearer {KEY}"}
ROUNDS = 12  # of different requests of every kind
LEAVING = 0.03  # of the requests, whose client leaves before the answer
WARM_UP = 1 / 6
MOST_GROWTH = 100.0  # bytes a request
VARYING = {"timing", "id", "created", "date"}  # of an answer, from one time to the next


@dataclass
class Soak:
    """What was sent and answered, shared by the clients; guarded by the lock."""

    until: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    first: dict[int, Any] = field(default_factory=dict)  # the first answer of each request
    times: list[tuple[float, float]] = field(default_factory=list)  # end and seconds of each
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    sent: int = 0


@dataclass(frozen=True)
class Sample:
    at: float
    requests: int
    resident: int
    descriptors: int
    threads: int


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--clients", type=int, default=6)
    given = parser.parse_args()
    row = run(given.seconds, given.clients, reload_seconds=60.0)
    print(json.dumps(row, indent=2))
    write_record(RESULTS_HERE / "soak.json", MODULE, [row])
    sys.exit(bool(row["wrong"]))


def run(seconds: float, clients: int, reload_seconds: float, rounds: int = ROUNDS) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        models = Path(temporary) / "models"
        glossary = write_models(models)
        with serving(arguments(models), environment()) as server:
            return _soak(server, glossary, seconds, clients, reload_seconds, rounds)


def write_models(models: Path) -> Path:
    """Copies of the embedded bundle, by the names that the requests give; the glossary of one of them."""
    for name in MODELS:
        shutil.copytree(DEFAULT_BUNDLE, models / name)
    glossary = models / "alpha.glossaries" / "animals.tsv"
    glossary.parent.mkdir()
    glossary.write_text(GLOSSARY)
    return glossary


def arguments(models: Path) -> list[str]:
    pairs = ",".join(f"{name}:en:fr" for name in MODELS)
    given = ["--models", models, "--default-model", "alpha", "--libretranslate", "--language-pairs", pairs]
    return ["-m", "attendant", "serve", *map(str, given), "--log-level", "error"]


def environment() -> dict[str, str]:
    return {"ATTENDANT_API_KEYS": KEY, "ATTENDANT_ADMIN_KEYS": ADMIN_KEY}


def _soak(
    server: Server, glossary: Path, seconds: float, clients: int, reload_seconds: float, rounds: int
) -> dict[str, Any]:
    pool = requests(seed=1, count=rounds)
    soak = Soak(time.monotonic() + seconds)
    before = [exchange(server.port, request) for request in pool]
    soak.wrong += [f"{r.name}: {status}" for r, (status, _) in zip(pool, before, strict=True) if status != r.status]
    soak.first = {place: answer for place, (_, answer) in enumerate(before) if pool[place].name != "page"}
    started = time.monotonic()
    soak.until = started + seconds
    threads = [threading.Thread(target=_ask, args=(server.port, pool, soak, seed)) for seed in range(clients)]
    threads.append(threading.Thread(target=_reload_often, args=(server, glossary, soak, reload_seconds)))
    for thread in threads:
        thread.start()
    samples = _watch(server.process.pid, soak)
    for thread in threads:
        thread.join()
    after = [exchange(server.port, request) for request in pool]
    same = sum(was == now for place, (was, now) in enumerate(zip(before, after, strict=True)) if place in soak.first)
    if same != len(soak.first):
        soak.wrong.append(f"{len(soak.first) - same} of {len(soak.first)} answers changed from the start to the end")
    if not gauges_at_rest(server.port, AUTHORIZED):
        soak.wrong.append("gauges are not at zero")
    reloads = total(metrics(server.port, AUTHORIZED), "attendant_reloads_total", outcome="ok")
    return summary(soak, samples, started, seconds, clients, reload_seconds, int(reloads))


def _ask(port: int, pool: list[Request], soak: Soak, seed: int) -> None:
    rng = random.Random(seed)
    while time.monotonic() < soak.until:
        place = rng.randrange(len(pool))
        request = pool[place]
        if rng.random() < LEAVING:
            _leave(port, request, rng)
            with soak.lock:
                soak.sent += 1
                soak.counts["left"] += 1
            continue
        started = time.monotonic()
        try:
            status, answer = exchange(port, request)
        except (OSError, http.client.HTTPException, ValueError) as error:
            status, answer = 0, type(error).__name__
        ended = time.monotonic()
        with soak.lock:
            soak.sent += 1
            soak.counts[request.name] += 1
            soak.times.append((ended, ended - started))
            if status != request.status or (place in soak.first and answer != soak.first[place]):
                soak.counts["wrong"] += 1
                soak.wrong += [f"{request.name}: {status} {answer!r:.200}"] if len(soak.wrong) < 10 else []


def _leave(port: int, request: Request, rng: random.Random) -> None:
    """A client that resets its connection, sooner or later."""
    head = f"{request.method} {request.path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
    whole = f"{head}content-length: {len(request.body)}\r\n\r\n".encode() + request.body
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), 20) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        raw.sendall(whole[: rng.choice([10, len(whole), len(whole), len(whole)])])
        time.sleep(rng.choice([0.0, 0.005, 0.05]))


def exchange(port: int, request: Request) -> tuple[int, Any]:
    """The status, and the answer without what differs from one time to the next."""
    connection = http.client.HTTPConnection(HOST, port, timeout=120)
    try:
        connection.request(request.method, request.path, request.body or None, {**AUTHORIZED, **request.headers})
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    if answer.headers.get_content_type() == "text/event-stream":
        return answer.status, _streamed([line[6:] for line in text.splitlines() if line.startswith("data: ")])
    if answer.headers.get_content_type() == "application/json":
        return answer.status, _still(json.loads(text))
    return answer.status, text


def _streamed(lines: list[str]) -> Any:
    """Events; of a chat its text, whose pieces are as large as what has come meanwhile."""
    if lines[-1] != "[DONE]":
        return [_still(json.loads(line)) for line in lines]
    return "".join(json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines[:-1])


def _still(answer: Any) -> Any:
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
        return answer["error"].get("type")
    return {key: value for key, value in answer.items() if key not in VARYING} if isinstance(answer, dict) else answer


def _reload_often(server: Server, glossary: Path, soak: Soak, seconds: float) -> None:
    """By turns: all of one model over HTTP, and by SIGHUP the model whose glossary was changed."""
    for turn in range(1_000_000):
        if time.monotonic() + seconds > soak.until:
            return
        time.sleep(seconds)
        if turn % 2:
            connection = http.client.HTTPConnection(HOST, server.port, timeout=120)
            connection.request(
                "POST", "/v1/reload", json.dumps({"model": "beta"}), {"authorization": f"Bearer {ADMIN_KEY}"}
            )
            answer = connection.getresponse()
            if answer.status != 200:
                soak.wrong.append(f"a reload: {answer.status} {answer.read()!r:.200}")
            connection.close()
        else:
            beside = glossary.with_suffix(".new")
            beside.write_text(f"{GLOSSARY}# {turn}\n")
            beside.replace(glossary)
            server.process.send_signal(signal.SIGHUP)


def _watch(process: int, soak: Soak) -> list[Sample]:
    samples, proc = [], Path(f"/proc/{process}")
    while time.monotonic() < soak.until:
        fields = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        resident, descriptors = int(fields["VmRSS"].split()[0]) * 1024, len(list((proc / "fd").iterdir()))
        samples.append(Sample(time.monotonic(), soak.sent, resident, descriptors, int(fields["Threads"])))
        time.sleep(0.5)
    return samples


def summary(
    soak: Soak, samples: list[Sample], started: float, seconds: float, clients: int, interval: float, reloads: int
) -> dict[str, Any]:
    warm = [each for each in samples if each.at > started + WARM_UP * seconds]
    points = by_interval(warm, interval)
    slope, error = least_squares([(x, y) for x, y in points])
    wrong = list(soak.wrong)
    if slope - 2 * error > MOST_GROWTH:
        wrong.append(f"memory grew by {slope:.0f} bytes a request")
    middle = len(warm) // 2
    first, last = warm[:middle], warm[middle:]
    for name in ("descriptors", "threads"):
        was, now = (median(getattr(each, name) for each in part) for part in (first, last))
        if now > was + clients:
            wrong.append(f"{name} rose from {was:.0f} to {now:.0f}")
    tenths: list[list[float]] = [[] for _ in range(10)]
    for ended, took in soak.times:
        tenths[min(9, int(10 * (ended - started) / seconds))].append(1e3 * took)
    return {
        "name": "soak",
        "seconds": seconds,
        "requests": soak.sent,
        "left": soak.counts["left"],
        "reloads": reloads,
        "kinds": len([kind for kind in soak.counts if kind not in ("left", "wrong")]),
        "compared": len(soak.first),
        "bytes_per_request": round(slope, 2),
        "standard_error": round(error, 2),
        "resident_mb": [round(y / 1e6, 1) for _, y in (points[0], points[-1])],
        "descriptors": _range([each.descriptors for each in warm]),
        "threads": _range([each.threads for each in warm]),
        "p50_ms": [round(median(part), 1) for part in tenths if part],
        "p99_ms": [round(quantiles(part, n=100)[98], 1) for part in tenths if len(part) > 1],
        "wrong_answers": soak.counts["wrong"],
        "wrong": wrong,
    }


def _range(values: list[int]) -> dict[str, float]:
    """Of descriptors or threads: the medians of the first and the last third, and the most."""
    third = max(1, len(values) // 3)
    return {"first": median(values[:third]), "last": median(values[-third:]), "most": max(values)}


def by_interval(samples: list[Sample], interval: float) -> list[tuple[float, float]]:
    """Requests and resident memory, the median of each interval; a reload's two models at once are then no outlier."""
    parts: dict[int, list[Sample]] = {}
    for each in samples:
        parts.setdefault(int((each.at - samples[0].at) / interval), []).append(each)
    return [(median(e.requests for e in part), median(e.resident for e in part)) for part in parts.values()]


def least_squares(points: list[tuple[float, float]]) -> tuple[float, float]:
    """The slope of y on x, and its standard error."""
    if len(points) < 3:
        return 0.0, float("inf")
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    return slope, float((rest / (len(points) - 2) / spread) ** 0.5)


if __name__ == "__main__":
    main()
