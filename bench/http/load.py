"""A load of requests over HTTP, the same for every server, and what became of it.

    python -m bench.http.load --port 8000 --clients 32                 each client asks again as soon as it is answered
    python -m bench.http.load --port 8000 --rate 20                    requests arrive at random, answered or not

Sources, beams and arrivals come from a seed. It stops after a number of requests or seconds, whichever is first, talks
to 127.0.0.1 only, and says so when it was itself what held the load up.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.http.client import Connection, ProtocolError, Response, post
from bench.report.record import write_record
from bench.versus.engines import random_ids, text

HOST = "127.0.0.1"
MADE = 2_000  # different requests
TICK = 0.01  # seconds between looks at how late the event loop is
BUSY = 0.85  # of a core: from here on the generator is too slow itself
LATE = 0.1  # of the median latency: a loop that is later than that spoils the figures


@dataclass(frozen=True, kw_only=True)
class Mix:
    """What is asked for."""

    vocabulary: int = 32_000
    shortest: int = 4  # source tokens
    longest: int = 60
    beams: tuple[int, ...] = (1, 1, 1, 4)  # one of them for each request, equally likely
    max_length: int | None = 64
    stream: bool = False
    texts: tuple[str, ...] = ()  # sources to choose from, instead of random tokens
    seed: int = 1

    def bodies(self) -> Iterator[bytes]:
        """Requests without end: some that are made beforehand, over and over."""
        return itertools.cycle([*itertools.islice(self._made(), MADE)])

    def _made(self) -> Iterator[bytes]:
        rng = np.random.default_rng(self.seed)
        while True:
            if self.texts:
                source = self.texts[int(rng.integers(len(self.texts)))]
            else:
                length = int(rng.integers(self.shortest, self.longest + 1))
                source = text(random_ids(rng, length, self.vocabulary))
            body: dict[str, Any] = {"inputs": source, "beam_size": self.beams[int(rng.integers(len(self.beams)))]}
            if self.max_length is not None:
                body["max_length"] = self.max_length
            if self.stream:
                body["stream"] = True
            yield json.dumps(body).encode()


@dataclass(frozen=True, kw_only=True)
class Load:
    """How it is asked: by a number of clients, or at a rate."""

    clients: int = 0
    rate: float = 0.0  # requests a second
    requests: int = 1_000
    seconds: float = 60.0
    run_in: float = 0.0  # of these seconds, those before anything is measured: all clients begin at once
    patience: float = 120.0  # seconds that an answer may take
    path: str = "/v1/generate"
    seed: int = 1  # of the arrivals


@dataclass
class Outcomes:
    """What became of the requests."""

    latencies: list[float] = field(default_factory=list)  # seconds, of those that were answered
    first_tokens: list[float] = field(default_factory=list)
    answers: list[tuple[float, int]] = field(default_factory=list)  # when, in seconds after the beginning; tokens
    errors: Counter[str] = field(default_factory=Counter)
    lateness: list[float] = field(default_factory=list)  # seconds after its time that a request was sent
    lags: list[float] = field(default_factory=list)  # seconds that the event loop was late
    began: float = 0.0

    def take(self, sent: float, response: Response) -> None:
        now = time.perf_counter()
        if response.status != 200:
            self.errors[f"HTTP {response.status}"] += 1
            return
        self.answers.append((now - self.began, target_tokens(response.body)))
        self.latencies.append(now - sent)
        self.first_tokens.append((response.first_token or now) - sent)


def target_tokens(body: bytes) -> int:
    """The tokens of an answer, whole or streamed; in a stream the last event holds the whole answer."""
    if body.startswith((b"event:", b"data:", b":")):
        body = body.strip().rpartition(b"\ndata:")[2]
    return int(json.loads(body)["usage"]["target_tokens"])


def measure_load(port: int, mix: Mix, load: Load) -> dict[str, Any]:
    """`run_load` in an event loop of its own, the lightest that there is: it computes on the server's processors."""
    if sys.platform == "win32":
        return asyncio.run(run_load(port, mix, load))
    import uvloop

    return uvloop.run(run_load(port, mix, load))


async def run_load(port: int, mix: Mix, load: Load) -> dict[str, Any]:
    """Ask, and report."""
    bodies = mix.bodies()
    outcomes = Outcomes(began=time.perf_counter())
    ticker = asyncio.create_task(watch_loop(outcomes.lags))
    processor = time.process_time()
    try:
        await (_closed if load.clients else _open)(port, bodies, load, outcomes)
    finally:
        ticker.cancel()
    elapsed = time.perf_counter() - outcomes.began
    await asyncio.sleep(0)  # connections that were closed end in the loop's next turn
    return report(outcomes, load, (time.process_time() - processor) / elapsed)


async def watch_loop(lags: list[float]) -> None:
    while True:
        before = time.perf_counter()
        await asyncio.sleep(TICK)
        lags.append(max(0.0, time.perf_counter() - before - TICK))


async def _closed(port: int, bodies: Iterator[bytes], load: Load, outcomes: Outcomes) -> None:
    left = load.requests
    stop = outcomes.began + load.seconds

    async def client() -> None:
        nonlocal left
        connection: Connection | None = None
        while left > 0 and time.perf_counter() < stop:
            left -= 1
            connection = await _ask(port, connection, next(bodies), load, outcomes)
        if connection is not None:
            connection.close()

    await asyncio.gather(*(client() for _ in range(load.clients)))


async def _open(port: int, bodies: Iterator[bytes], load: Load, outcomes: Outcomes) -> None:
    idle: list[Connection] = []
    under_way: set[asyncio.Task[None]] = set()

    async def ask(body: bytes) -> None:
        connection = await _ask(port, idle.pop() if idle else None, body, load, outcomes)
        if connection is not None:
            idle.append(connection)

    for due, body in zip(arrivals(load), bodies, strict=False):
        wait = outcomes.began + due - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        outcomes.lateness.append(max(0.0, time.perf_counter() - outcomes.began - due))
        task = asyncio.create_task(ask(body))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    while under_way:
        await asyncio.wait(list(under_way))
    for connection in idle:
        connection.close()


def arrivals(load: Load) -> list[float]:
    """Seconds after the beginning: a Poisson process."""
    gaps = np.random.default_rng(load.seed).exponential(1 / load.rate, load.requests)
    times = np.cumsum(gaps)
    return [float(moment) for moment in times[times < load.seconds]]


async def _ask(
    port: int, connection: Connection | None, body: bytes, load: Load, outcomes: Outcomes
) -> Connection | None:
    """One request and its outcome; the connection, if it can be used again."""
    sent = time.perf_counter()
    try:
        if connection is None or not connection.usable:
            connection = await Connection.open(HOST, port)
        async with asyncio.timeout(load.patience):
            response = await connection.request(post(load.path, HOST, port, body))
        outcomes.take(sent, response)
        return connection
    except TimeoutError:
        outcomes.errors["no answer in time"] += 1
    except (OSError, ProtocolError) as error:
        outcomes.errors[type(error).__name__] += 1
    except (ValueError, KeyError, TypeError):
        outcomes.errors["not an answer"] += 1
    if connection is not None:
        connection.close()
    return None


def report(outcomes: Outcomes, load: Load, processor_share: float) -> dict[str, Any]:
    """Rates are over the time in which requests were sent: when no more are, fewer and fewer are under way."""
    end = min(load.seconds, max((when for when, _ in outcomes.answers), default=0.0))
    elapsed = max(end - load.run_in, 1e-9)
    within = [tokens for when, tokens in outcomes.answers if load.run_in < when <= end]
    times = zip(outcomes.answers, outcomes.latencies, outcomes.first_tokens, strict=True)
    settled = [(latency, first) for (when, _), latency, first in times if when - latency >= load.run_in]
    answered = len(outcomes.answers)
    lag = percentile(outcomes.lags, 99)
    found = {
        "load": f"{load.clients} clients" if load.clients else f"{load.rate:g} requests/s at random",
        "answered": answered,
        "errors": dict(outcomes.errors),
        "seconds": round(elapsed, 2),
        "requests_per_second": round(len(within) / elapsed, 2),
        "tokens_per_second": round(sum(within) / elapsed, 1),
        "mean_target_tokens": round(sum(tokens for _, tokens in outcomes.answers) / max(1, answered), 1),
        "latency_ms": percentiles([latency for latency, _ in settled]),
        "first_token_ms": percentiles([first for _, first in settled]),
        "generator": {
            "processor_share": round(processor_share, 2),
            "loop_lag_ms": round(1e3 * lag, 1),
            "lateness_ms": round(1e3 * percentile(outcomes.lateness, 99), 1),
        },
    }
    return {**found, "held_up_by_generator": complaint(found)}


def complaint(found: dict[str, Any]) -> str | None:
    """A sentence where the generator itself was what held the load up."""
    generator, median = found["generator"], found["latency_ms"]["p50"]
    if generator["processor_share"] > BUSY:
        return f"the generator used {generator['processor_share']:.0%} of its core; a faster server would look the same"
    late = max(generator["loop_lag_ms"], generator["lateness_ms"])
    if median is not None and late > max(LATE * median, 1e3 * TICK):
        return f"the generator was up to {late:.1f} ms late, beside a median latency of {median:.1f} ms"
    return None


def percentile(values: Sequence[float], share: float) -> float:
    return float(np.percentile(values, share)) if len(values) else 0.0


def percentiles(seconds: Sequence[float]) -> dict[str, float | None]:
    if not seconds:
        return dict.fromkeys(("p50", "p95", "p99"))
    return {f"p{share}": round(1e3 * percentile(seconds, share), 2) for share in (50, 95, 99)}


def show(found: dict[str, Any]) -> str:
    errors = ", ".join(f"{count} {kind}" for kind, count in found["errors"].items()) or "none"
    line = f"{found['load']:<26} {found['requests_per_second']:>8.2f} requests/s"
    line += f" {found['tokens_per_second']:>8.1f} tokens/s"
    line += "  latency p50 {p50} p95 {p95} p99 {p99} ms".format(**found["latency_ms"])
    line += "  first token p50 {p50} p99 {p99} ms".format(**found["first_token_ms"]) + f"  errors: {errors}"
    return line + (f"\n  {found['held_up_by_generator']}" if found["held_up_by_generator"] else "")


def main() -> None:
    parser = argparse.ArgumentParser(description="Load a server on this machine.")
    parser.add_argument("--port", type=int, required=True)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--clients", type=int, default=0, metavar="N", help="so many requests under way at any time")
    how.add_argument("--rate", type=float, default=0.0, metavar="R", help="so many requests a second, at random times")
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--max-length", type=int, default=64)
    parser.add_argument("--longest", type=int, default=60, help="source tokens")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 1, 1, 4])
    parser.add_argument("--texts", type=Path, help="a file of sources, one a line, instead of random tokens")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.clients < 0 or options.rate < 0 or not (options.clients or options.rate):
        parser.error("--clients and --rate take a number above 0.")
    texts = options.texts.read_text(encoding="utf-8").splitlines() if options.texts else []
    mix = Mix(
        longest=options.longest,
        beams=tuple(options.beams),
        max_length=options.max_length or None,
        stream=options.stream,
        texts=tuple(texts),
        seed=options.seed,
    )
    load = Load(
        clients=options.clients,
        rate=options.rate,
        requests=options.requests,
        seconds=options.seconds,
        seed=options.seed,
    )
    found = measure_load(options.port, mix, load)
    print(show(found))
    if options.out:
        write_record(options.out, "bench.http.load", [found])


if __name__ == "__main__":
    main()
