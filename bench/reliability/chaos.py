"""Faults, one after the other, in a service under load; after each it must be as if nothing had been.

    python -m bench.reliability.chaos [--seconds 3] [--only NAME]

While clients ask, one fault happens. Every request must have exactly one outcome: its whole answer, that of an idle
service, a documented error, or, where the fault cuts connections, an end. Then the service must count as many requests
as were sent, have its gauges at zero, and answer as before. One that was ended must end with 0, and a new one answers
as before. Without memory the process may end by a signal, and a new one takes its place. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attendant.service.settings import DEFAULT_BUNDLE
from bench.http.servers import HOST
from bench.reliability.faults import FAULTS, Service, start
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
DOCUMENTED = {429, 500, 503, 504}  # errors that a fault may give


@dataclass
class Load:
    """What clients sent, and what became of it."""

    expected: list[Any]
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)


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
    if ended is not None and ended < 0 and name in MAY_END:
        return {**_row(name, load, wrong), "ended": signal.Signals(-ended).name}
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
    reloads = {
        each: total(after, RELOADS, outcome=each) - total(before, RELOADS, outcome=each) for each in ("ok", "refused")
    }
    return {**_row(name, load, wrong), "reloads": {each: int(count) for each, count in reloads.items() if count}}


COUNTED, RELOADS = "attendant_requests_total", "attendant_reloads_total"
ENDPOINTS = sorted({path for path, _ in BODIES})
MAY_END = {"no memory"}  # what is not Python ends the process where an allocation fails; it must not hang
KEEPS_ANSWERING = {
    "a full disk",
    "a disk that returns errors",
    "a clock that jumps",
    "bundles replaced before, during and after reloads",
}
EXACT = {
    "nothing",
    "SIGSTOP and SIGCONT",
    "steps that raise",
    "steps that hang",
    "NaN from the kernels",
    *KEEPS_ANSWERING,
}


def _row(name: str, load: Load, wrong: list[str]) -> dict[str, Any]:
    outcomes = dict(sorted(load.outcomes.items()))
    return {"name": name, "requests": sum(outcomes.values()), "outcomes": outcomes, "reloads": {}, "wrong": wrong}


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
        outcomes = {**row["outcomes"], **{f"reload {each}": count for each, count in row["reloads"].items()}}
        shown = ", ".join(f"{count} x {each}" for each, count in outcomes.items())
        shown += f", ended by {row['ended']}" if "ended" in row else ""
        print(f"{row['name']:50}{row['requests']:>7}  {shown}", flush=True)
        print("".join(f"    WRONG: {each}\n" for each in row["wrong"]), end="")
    if not given.only:
        write_record(RESULTS_HERE / "chaos.json", MODULE, rows)
    sys.exit(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    main()
