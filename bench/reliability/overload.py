"""Twice the capacity for five minutes: what is accepted is answered in time, the rest is told truly when to come back.

    python -m bench.reliability.overload [--seconds 300] [--model embedded]

The capacity is what clients that ask again at once are answered. Then requests arrive at random, at twice that rate:
most from a large client, texts by the dozen, and some from a small one, one text at a time, each with a key of its own.
`Retry-After` of a refusal is held against the time in which half of what waited then had begun, both in whole seconds.
Memory is compared between the first and the last third, the first sixth left out. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from attendant.service.settings import DEFAULT_BUNDLE
from bench.http.client import Connection, ProtocolError, post
from bench.http.load import Mix, percentile
from bench.http.servers import HOST, Server, attendant, serving
from bench.models.random_model import prepare
from bench.reliability.watch import gauges_at_rest
from bench.report.record import RESULTS_HERE, write_record

MODULE = "bench.reliability.overload"
KEYS = {"large": "overload-large", "small": "overload-small"}
TIMES = 2.0  # of the capacity
SMALL = 0.05  # of the capacity, asked for by the small client
ROUND = 2.0  # Retry-After may be off by this factor
THROUGHPUT = 0.9  # of the capacity, at least
GROWTH = 1.03  # of resident memory, at most
WITHIN = 0.99  # of the refusals and of the small client's requests
WARM_UP = 1 / 6
PATIENCE = 120.0  # seconds for an answer, which is longer than any deadline here
DEADLINE_MS = 60_000.0  # that of the service where a request names none
MARGIN_MS = 1_000.0  # for an answer to be written and read, after its deadline


@dataclass(frozen=True)
class Kind:
    """A model and what is asked of it; sources are drawn from a seed."""

    texts: int  # in a request of the large client
    beam_size: int
    max_length: int
    clients: int  # that together keep the service busy, while its capacity is measured
    mix: Mix

    def bodies(self, texts: int, seed: int) -> Iterator[bytes]:
        """Requests without end."""
        sources = Mix(vocabulary=self.mix.vocabulary, texts=self.mix.texts, seed=seed).bodies()
        while True:
            inputs = [json.loads(next(sources))["inputs"] for _ in range(texts)]
            body = {"inputs": inputs, "beam_size": self.beam_size, "max_length": self.max_length}
            yield json.dumps(body).encode()


LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = tuple("".join(np.random.default_rng(n).choice(list(LETTERS), 4 + n % 8)) for n in range(2000))
KINDS = {
    "embedded": Kind(texts=12, beam_size=4, max_length=64, clients=16, mix=Mix(texts=WORDS)),
    "base": Kind(texts=12, beam_size=4, max_length=64, clients=12, mix=Mix()),
}


@dataclass
class Outcome:
    client: str
    sent: float  # seconds, as all times here
    ended: float
    status: int  # 0: no answer
    texts: int
    tokens: int = 0
    queued: float = 0.0
    retry_after: int = 0
    cut: bool = False  # by its deadline

    @property
    def began(self) -> float:
        return self.sent + self.queued


@dataclass
class Sample:
    at: float
    resident: int


@dataclass
class Tried:
    outcomes: list[Outcome] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0  # of the sending


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--model", choices=KINDS)
    given = parser.parse_args()
    rows = []
    for name in [given.model] if given.model else KINDS:
        rows.append(run(name, given.seconds, probe_seconds=20.0))
        print(json.dumps(rows[-1], indent=2), flush=True)
    if not given.model:
        write_record(RESULTS_HERE / "overload.json", MODULE, rows)
    sys.exit(any(row["wrong"] for row in rows))


def run(name: str, seconds: float, probe_seconds: float) -> dict[str, Any]:
    bundle: Path = DEFAULT_BUNDLE if name == "embedded" else prepare().bundle
    with serving(attendant(bundle), {"ATTENDANT_API_KEYS": ",".join(f"{n}:{k}" for n, k in KEYS.items())}) as server:
        kind = KINDS[name]
        first = asyncio.run(_one(server, next(kind.bodies(2, seed=5))))
        busy = asyncio.run(closed(server, kind, probe_seconds))
        rate = rate_of(busy, WARM_UP)
        tried = asyncio.run(arriving(server, kind, rate["texts"], seconds))
        row = summary(name, rate, tried, seconds)
        if not gauges_at_rest(server.port, {"authorization": f"Bearer {KEYS['small']}"}):
            row["wrong"].append("gauges are not at zero")
        if asyncio.run(_one(server, next(kind.bodies(2, seed=5)))) != first:
            row["wrong"].append("a known request is answered otherwise")
    return row


async def _one(server: Server, body: bytes) -> Any:
    connection = await Connection.open(HOST, server.port)
    response = await connection.request(_request(server.port, "small", body))
    connection.close()
    return json.loads(response.body)["outputs"]


def _request(port: int, client: str, body: bytes) -> bytes:
    return post("/v1/generate", HOST, port, body, f"authorization: Bearer {KEYS[client]}\r\n")


async def closed(server: Server, kind: Kind, seconds: float) -> Tried:
    """Clients that ask again at once."""
    tried = Tried(began=time.monotonic())
    tried.ended = tried.began + seconds
    bodies = kind.bodies(kind.texts, seed=1)

    async def ask() -> None:
        connection: Connection | None = None
        while time.monotonic() < tried.ended:
            connection = await _ask(server.port, "large", kind.texts, next(bodies), connection, tried)
        if connection is not None:
            connection.close()

    await asyncio.gather(*(ask() for _ in range(kind.clients)))
    return tried


async def arriving(server: Server, kind: Kind, capacity: float, seconds: float) -> Tried:
    """Both clients' requests at random times, answered or not; memory each second."""
    tried = Tried(began=time.monotonic())
    tried.ended = tried.began + seconds
    watching = asyncio.create_task(_watch(server, tried))
    large = _arrive(server, kind, "large", kind.texts, (TIMES - SMALL) * capacity, tried)
    await asyncio.gather(large, _arrive(server, kind, "small", 1, SMALL * capacity, tried))
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    return tried


async def _watch(server: Server, tried: Tried) -> None:
    while True:
        tried.samples.append(Sample(time.monotonic(), server.memory()["resident"]))
        await asyncio.sleep(1.0)


async def _arrive(server: Server, kind: Kind, client: str, texts: int, rate: float, tried: Tried) -> None:
    """Requests of `texts` at `rate` texts a second, by a Poisson process."""
    rng = np.random.default_rng(len(client))
    idle: list[Connection] = []
    under_way: set[asyncio.Task[None]] = set()

    async def ask(body: bytes) -> None:
        connection = await _ask(server.port, client, texts, body, idle.pop() if idle else None, tried)
        if connection is not None:
            idle.append(connection)

    due = tried.began
    for body in itertools.islice(kind.bodies(texts, seed=2), 10_000_000):
        due += float(rng.exponential(texts / rate))
        if due > tried.ended:
            break
        if (wait := due - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(ask(body))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    while under_way:
        await asyncio.wait(list(under_way))
    for connection in idle:
        connection.close()


async def _ask(
    port: int, client: str, texts: int, body: bytes, connection: Connection | None, tried: Tried
) -> Connection | None:
    """One request and its outcome; the connection, if it can be used again."""
    sent = time.monotonic()
    found = Outcome(client, sent, sent, 0, texts)
    tried.outcomes.append(found)
    try:
        if connection is None or not connection.usable:
            connection = await Connection.open(HOST, port)
        async with asyncio.timeout(PATIENCE):
            response = await connection.request(_request(port, client, body))
    except (TimeoutError, OSError, ProtocolError):
        found.ended = time.monotonic()
        if connection is not None:
            connection.close()
        return None
    found.ended, found.status = time.monotonic(), response.status
    found.retry_after = int(response.fields.get(b"retry-after", b"0"))
    if response.status == 200:
        answer = json.loads(response.body)
        found.tokens, found.queued = answer["usage"]["target_tokens"], answer["timing"]["queue_ms"] / 1e3
        found.cut = b'"deadline"' in response.body
    return connection


def rate_of(tried: Tried, warm_up: float) -> dict[str, float]:
    """Texts and tokens a second of what was answered while requests were sent, after the warm-up."""
    begin = tried.began + warm_up * (tried.ended - tried.began)
    answered = [each for each in tried.outcomes if each.status == 200 and begin < each.ended <= tried.ended]
    seconds = tried.ended - begin
    return {name: sum(getattr(each, name) for each in answered) / seconds for name in ("texts", "tokens")}


def retry_factors(outcomes: Sequence[Outcome]) -> list[float]:
    """Of each refusal, Retry-After over the time in which half of what waited had begun, both in whole seconds."""
    accepted = [each for each in outcomes if each.status == 200]
    factors = []
    for refused in (each for each in outcomes if each.status == 429):
        waiting = sorted(each.began for each in accepted if each.sent <= refused.ended < each.began)
        if waiting:
            took = waiting[len(waiting) // 2] - refused.ended
            factors.append(refused.retry_after / max(1, math.ceil(took)))
    return factors


def summary(name: str, capacity: dict[str, float], tried: Tried, seconds: float) -> dict[str, Any]:
    settled = [each for each in tried.outcomes if each.sent > tried.began + WARM_UP * seconds]
    factors = retry_factors(settled)
    true = sum(1 / ROUND <= factor <= ROUND for factor in factors) / max(1, len(factors))
    share = rate_of(tried, WARM_UP)["tokens"] / capacity["tokens"]
    warm = [each.resident for each in tried.samples if each.at > tried.began + WARM_UP * seconds]
    third = max(1, len(warm) // 3)
    memory = [median(warm[:third]), median(warm[-third:])]
    slowest = max((each.ended - each.sent for each in tried.outcomes if each.status == 200), default=0.0)
    clients = {client: _client([each for each in settled if each.client == client]) for client in KEYS}
    odd = Counter(each.status for each in tried.outcomes if each.status not in (200, 429))
    wrong = [f"{count} x {status or 'no answer'}" for status, count in odd.items()]
    late = [each for each in tried.outcomes if each.cut or 1e3 * (each.ended - each.sent) > DEADLINE_MS + MARGIN_MS]
    wrong += [f"{len(late)} were accepted, and not done within their bound"] if late else []
    wrong += [f"Retry-After was true for {true:.1%} of the refusals"] if factors and true < WITHIN else []
    wrong += [f"throughput fell to {share:.0%} of the peak"] if share < THROUGHPUT else []
    if memory[1] > GROWTH * memory[0]:
        wrong.append(f"memory grew from {memory[0] / 1e6:.0f} to {memory[1] / 1e6:.0f} MB")
    kept = clients["small"]["answered"] / max(1, clients["small"]["requests"])
    wrong += [f"of the small client's requests {kept:.1%} were answered"] if kept < WITHIN else []
    return {
        "name": name,
        "seconds": seconds,
        "capacity_texts_per_second": round(capacity["texts"], 1),
        "share_of_peak": round(share, 3),
        "clients": clients,
        "slowest_seconds": round(slowest, 2),
        "retry_after": {
            "refusals": len(factors),
            "true": round(true, 4),
            "seconds": [min(each.retry_after for each in settled if each.status == 429),
                        max(each.retry_after for each in settled if each.status == 429)] if factors else [],
            "factor_percentiles": [round(percentile(factors, p), 2) for p in (1, 50, 99)],
        },
        "resident_mb": [round(each / 1e6, 1) for each in memory],
        "wrong": wrong,
    }  # fmt: skip


def _client(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    answered = [each for each in outcomes if each.status == 200]
    times = [1e3 * (each.ended - each.sent) for each in answered]
    return {
        "requests": len(outcomes),
        "answered": len(answered),
        "refused": sum(each.status == 429 for each in outcomes),
        "p50_ms": round(percentile(times, 50), 1),
        "p99_ms": round(percentile(times, 99), 1),
    }


if __name__ == "__main__":
    main()
