"""Mutations of the conformance suite's requests, over raw sockets, to a service that must go on as if nothing was.

    python -m bench.reliability.fuzz.raw_http [--inputs 100000] [--seed 1]

An answer of 500, bytes that are no answer, a connection that neither answers nor ends, a service that ends, or one that
then answers a known request otherwise, are faults. Its memory at the end is beside that after a tenth of the inputs.
Inputs at fault stand in the record and in tests/bench/reliability/requests, whence `make test` sends them again.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import hashlib
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.http.servers import HOST, ROOT, serving
from bench.reliability.conformance.answers import AnswerError, read_answers
from bench.reliability.conformance.case import END
from bench.reliability.conformance.run import all_cases
from bench.reliability.fuzz.mutate import mutated
from bench.reliability.watch import gauges_at_rest, known_answer
from bench.report.record import RESULTS_HERE, write_record

MODULE = "bench.reliability.fuzz.raw_http"
KEPT = ROOT / "tests/bench/reliability/requests"
WORDS = [
    b"GET",
    b"POST",
    b"HEAD",
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"Host: x\r\n",
    b"Content-Length: 20\r\n",
    b"chunked",
    b"close",
]
WORDS += [b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n"]
WORDS += [
    b"Content-Encoding: gzip\r\n",
    b"Authorization: Bearer x\r\n",
    b"/v1/generate",
    b"/metrics",
    b"0\r\n\r\n",
    b"\r\n\r\n",
]
TAKEN = {501, 503, 505}  # of 5xx, what a service may say to whoever sends this
AT_ONCE = 48  # connections
KEEP_ALIVE = 4  # seconds that the service keeps an idle connection: a mutation can be a whole request, which may idle
PATIENCE = 30.0  # seconds for an answer or an end
TRUNCATED = (
    "before the connection ended",
    "without end",
    "no chunk size: b''",
    "the last chunk has no end",
    "not as long",
)
SHOWN = 3000  # bytes of an input in the record
GOOD = 0.8  # of the seeds: what is refused as it is says little
SMALL = 20_000  # bytes of a seed: large ones would take all the time


@dataclass(frozen=True)
class Fault:
    text: str
    sent: bytes = b""

    def record(self) -> dict[str, str]:
        return {"fault": self.text, "input": base64.b64encode(self.sent[:SHOWN]).decode()}


@dataclass
class Tried:
    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    inputs: int = 0


def seeds() -> tuple[list[bytes], list[bytes]]:
    """Requests that are answered, and those that are refused."""
    good, bad = list[bytes](), list[bytes]()
    for _, case in all_cases():
        whole = b"".join(case.sent)
        if len(whole) <= SMALL:
            (good if case.allowed.startswith(("100", "200")) else bad).append(whole)
    return good, bad


async def fuzz(port: int, inputs: int, seed: int) -> Tried:
    rng, tried, (good, bad) = random.Random(seed), Tried(), seeds()
    chosen = (rng.choice(good if rng.random() < GOOD else bad) for _ in range(inputs))
    sent = (mutated(rng, each, WORDS, bad) for each in chosen)
    await asyncio.gather(*(_work(port, sent, tried, rng) for _ in range(AT_ONCE)))
    return tried


async def _work(port: int, sent: Iterator[bytes], tried: Tried, rng: random.Random) -> None:
    for data in sent:
        await attempt(port, data, tried, half_close=rng.random() < 0.5)


async def attempt(port: int, data: bytes, tried: Tried, half_close: bool) -> None:
    """Send it, and note what was answered and what is wrong with that."""
    tried.inputs += 1
    try:
        received = await asyncio.wait_for(_exchange(port, data, half_close), PATIENCE)
    except TimeoutError:
        tried.faults.append(Fault(f"no answer and no end in {PATIENCE:g} s", data))
    except OSError as error:
        tried.faults.append(Fault(f"no connection: {error}", data))
    else:
        judge(data, received, tried)


async def _exchange(port: int, data: bytes, half_close: bool) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, port)
    received = b""
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(data if half_close else data + END)
            await writer.drain()
            if half_close:
                writer.write_eof()
            while part := await reader.read(2**16):
                received += part
    finally:
        writer.close()
    return received


def judge(data: bytes, received: bytes, tried: Tried) -> None:
    found = [int(status) for status in re.findall(rb"^HTTP/1\.1 ([0-9]{3}) ", received, re.MULTILINE)]
    tried.statuses.update(found)
    if wrong := [status for status in found if status >= 500 and status not in TAKEN]:
        tried.faults.append(Fault(f"{wrong}", data))
    if b"HEAD" not in data and received:
        try:
            read_answers(received)
        except AnswerError as error:
            if not any(each in str(error) for each in TRUNCATED):
                tried.faults.append(Fault(str(error), data))


def keep(faults: list[Fault]) -> None:
    """Inputs at fault as files, which `make test` sends again."""
    for fault in faults:
        if fault.sent:
            KEPT.mkdir(exist_ok=True)
            (KEPT / hashlib.sha256(fault.sent).hexdigest()[:12]).write_bytes(fault.sent)


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    command = ["-m", "attendant", "serve", "--header-seconds", "1", "--body-seconds", "1", "--log-level", "error"]
    command += ["--keep-alive-seconds", str(KEEP_ALIVE)]
    with serving(command) as server:
        before = known_answer(server.port)
        tried = asyncio.run(fuzz(server.port, given.inputs // 10, given.seed))
        early = server.memory()["resident"]
        rest = asyncio.run(fuzz(server.port, given.inputs - given.inputs // 10, given.seed + 1))
        faults = [*tried.faults, *rest.faults]
        if not gauges_at_rest(server.port):
            faults.append(Fault("gauges are not at zero afterwards"))
        if known_answer(server.port) != before:
            faults.append(Fault("a known request is answered otherwise afterwards"))
        grown = (server.memory()["resident"] - early) / 2**20
    statuses = tried.statuses + rest.statuses
    print(f"{tried.inputs + rest.inputs:,} inputs; answers {dict(sorted(statuses.items()))}; "
          f"{grown:+.1f} MiB after the first tenth; {len(faults)} faults")  # fmt: skip
    print("\n".join(f"{fault.text} to {fault.sent[:300]!r}" for fault in faults[:20]))
    keep(faults)
    row = {
        "name": "raw HTTP",
        "inputs": tried.inputs + rest.inputs,
        "faults": len(faults),
        "found": [fault.record() for fault in faults[:20]],
        "grown_mb": round(grown, 1),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
    }
    write_record(RESULTS_HERE / "fuzz_http.json", MODULE, [row])
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
