"""Bodies by a grammar: deep, huge, keys twice, numbers at every edge, wrong types; to every route that takes JSON.

    python -m bench.reliability.fuzz.json_bodies [--inputs 50000] [--seed 1]

A good request of each route has some of its values, keys or their texts replaced. A 5xx but 504, an answer that is no
JSON, one that does not come, a service that ends or then answers a known request otherwise, are faults. Its memory at
the end is beside that after a tenth of the inputs. Inputs at fault stand in the record.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.http.client import Connection, ProtocolError, post
from bench.http.servers import HOST, Server, serving
from bench.reliability.soak import arguments, write_models
from bench.reliability.soak_requests import Request, requests
from bench.reliability.watch import gauges_at_rest, known_answer
from bench.report.record import RESULTS_HERE, write_record

MODULE = "bench.reliability.fuzz.json_bodies"
AT_ONCE = 24  # connections
PATIENCE = 60.0  # seconds for an answer; a text ends at its deadline of a second
TAKEN = {501, 504}  # of 5xx, what may be answered
DEEPEST, LONGEST = 20_000, 50_000
NUMBERS = """
    0 -0 0.0 -0.0 1 -1 2 31 32 33 63 64 65 255 256 257 1e0 1.0 1.5 0.1 1e2 1E400 -1E400 1e-400 5e-324
    1.7976931348623157e308 9007199254740993 2147483647 2147483648 -2147483648 -2147483649 4294967296
    9223372036854775807 9223372036854775808 -9223372036854775809 18446744073709551615 18446744073709551616
    NaN Infinity -Infinity 00 +1 .5 1. 0x1
""".split()  # noqa: SIM905
TEXTS = (
    *('""', '"a"', '" "', '"\\u0000"', '"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\\uFEFF"', '"\u2028"'),
    *('"a\\nb"', '"true"', '"1"', '"never"', '"\\x"', '"\\u12"', '"\n"', "'a'", '"a', '"..', '"/../../etc/passwd"'),
    *(f'"{"a" * LONGEST}"', f'"{"é" * 20_000}"', '"' + "\\u0041" * 5000 + '"', '"i\\u0307\\u0323"', '"\u202eabc"'),
)
OTHERS = (
    *("null", "true", "false", "[]", "{}", "[[]]", "[{}]", '[""]', "[null]", '{"": 0}', '{"a": {"b": []}}', "", ","),
    *("[" * DEEPEST + "]" * DEEPEST, '{"a":' * DEEPEST + "0" + "}" * DEEPEST, "[" * DEEPEST),
    *("[" + "0," * LONGEST + "0]", "[" + '"a",' * 2000 + '"a"]', "[" + "{}," * 2000 + "{}]"),
    *("{" + ",".join(f'"k{n}": {n}' for n in range(2000)) + "}", "/* */ 1", "[1,]", '{"a":1,}', "\ufeff1", "tru"),
)
WRONG = [*NUMBERS, *TEXTS, *OTHERS]
KEYS = ("", "inputs", "source", "stream", "beam_size", "__proto__", "__class__", "model", "seed", "\\u0000")


@dataclass
class Tried:
    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[dict[str, str]] = field(default_factory=list)
    inputs: int = 0


def bodies(seed: int) -> list[Request]:
    """Good requests of every route that takes JSON."""
    return [each for each in requests(seed, 4) if each.body.startswith(b"{") and each.status == 200]


def written(rng: random.Random, value: Any, rate: float) -> str:
    """A value as JSON; each part becomes something else at this rate."""
    if rng.random() < rate:
        return rng.choice(WRONG)
    if isinstance(value, dict):
        pairs = [f"{json.dumps(key)}:{written(rng, item, rate)}" for key, item in value.items()]
        if rng.random() < rate:
            pairs.append(f'"{rng.choice([*KEYS, *value])}":{rng.choice(WRONG)}')  # one that it has comes twice
        if pairs and rng.random() < rate / 2:
            pairs.pop(rng.randrange(len(pairs)))
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        times = rng.choice((0, 2, 300)) if rng.random() < rate else 1
        return "[" + ",".join(written(rng, item, rate) for item in value * times) + "]"
    return json.dumps(value)


def inputs(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    rng, good = random.Random(seed), bodies(seed)
    for _ in range(count):
        request = rng.choice(good)
        text = written(rng, json.loads(request.body), rng.choice((0.03, 0.1, 0.3)))
        yield request.path, text.encode("utf-8", "surrogatepass")


async def fuzz(port: int, count: int, seed: int) -> Tried:
    tried, sent = Tried(), inputs(seed, count)

    async def work() -> None:
        for path, body in sent:
            await attempt(port, path, body, tried)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return tried


async def attempt(port: int, path: str, body: bytes, tried: Tried) -> None:
    tried.inputs += 1
    try:
        connection = await Connection.open(HOST, port)
        try:
            async with asyncio.timeout(PATIENCE):
                response = await connection.request(post(path, HOST, port, body))
        finally:
            connection.close()
    except (TimeoutError, OSError, ProtocolError) as error:
        found = f"{type(error).__name__} {error}"
    else:
        tried.statuses[response.status] += 1
        found = judged(response.status, response.body)
    if found:
        tried.faults.append({"fault": f"{path}: {found}", "input": base64.b64encode(body[:3000]).decode()})


def judged(status: int, body: bytes) -> str:
    """What is wrong with an answer."""
    if status >= 500 and status not in TAKEN:
        return f"{status} {body[:200]!r}"
    if body.startswith((b"event:", b"data:", b":")):
        return ""
    try:
        answer = json.loads(body)
    except ValueError:
        return f"{status} that is no JSON: {body[:200]!r}"
    return "" if status == 200 or (isinstance(answer, dict) and answer.get("error")) else f"{status} without an error"


@contextlib.contextmanager
def served(models: Path) -> Iterator[Server]:
    """Every route, models by the names that the requests give, and short deadlines."""
    write_models(models)
    with serving([*arguments(models), "--timeout-ms", "1000", "--max-timeout-ms", "1000"]) as server:
        yield server


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, served(Path(temporary) / "models") as server:
        before = known_answer(server.port)
        tried = asyncio.run(fuzz(server.port, given.inputs // 10, given.seed))
        early = server.memory()["resident"]
        rest = asyncio.run(fuzz(server.port, given.inputs - given.inputs // 10, given.seed + 1))
        faults = [*tried.faults, *rest.faults]
        if not gauges_at_rest(server.port):
            faults.append({"fault": "gauges are not at zero afterwards", "input": ""})
        if known_answer(server.port) != before:
            faults.append({"fault": "a known request is answered otherwise afterwards", "input": ""})
        grown = (server.memory()["resident"] - early) / 2**20
    statuses = tried.statuses + rest.statuses
    print(f"{tried.inputs + rest.inputs:,} inputs; {dict(sorted(statuses.items()))}; {grown:+.1f} MiB")
    print("\n".join(f"{each['fault']} to {base64.b64decode(each['input'])[:300]!r}" for each in faults[:20]))
    row = {
        "name": "JSON bodies",
        "inputs": tried.inputs + rest.inputs,
        "faults": len(faults),
        "found": faults[:20],
        "grown_mb": round(grown, 1),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
    }
    write_record(RESULTS_HERE / "fuzz_json.json", MODULE, [row])
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
