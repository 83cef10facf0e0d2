"""The embedded model: resident memory, and what HTTP costs beside the engine alone.

    python -m bench.http.embedded [--bundle DIR] [--data runs/data/test.tsv]

Goals: under 250 MB resident; a request over HTTP at most twice the same request through the engine alone; with 16
clients at least 0.4 of the requests/s of a bare FastAPI endpoint. `bench.http.start` measures its start.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from bench.http.load import Load, Mix, measure_load, show
from bench.http.servers import ROOT, attendant, serving
from bench.report.record import RESULTS_HERE, write_record
from bench.versus.engines import OurEngine

EMBEDDED = ROOT / "service" / "default_bundle"
CLIENTS = 16
WARM_UP = Load(clients=4, requests=200, seconds=10.0)


def over_http(arguments: list[str], mix: Mix, seconds: float) -> dict[str, Any]:
    """A lone client, then many; memory."""
    with serving(arguments) as server:
        first = server.memory()
        measure_load(server.port, mix, WARM_UP)
        alone = measure_load(server.port, mix, Load(clients=1, requests=2_000, seconds=seconds))
        many = measure_load(server.port, mix, Load(clients=CLIENTS, requests=10**6, seconds=seconds))
        print(f"{show(alone)}\n{show(many)}", flush=True)
        memory = {"resident_at_start": first["resident"], **server.memory()}
        return {"memory": memory, "alone": alone, "many": many}


def engine_alone(bundle: Path, texts: list[str], threads: int, precision: str) -> float:
    """The median milliseconds of a request through the engine alone, greedy, its text read and written."""
    from attendant.service.engine.tasks import Generate, Options

    engine = OurEngine(bundle, precision, threads)
    taken = []
    try:
        for source in texts:
            started = time.perf_counter()
            ids = engine.service.source_tokenizer.encode(source)
            limit = engine.service.bundle.limits["max_target_length"]
            answer = engine.run([Generate(source=ids, options=Options(max_length=limit))])[0]
            engine.service.target_tokenizer.decode(answer.hypotheses[0].ids)
            taken.append(time.perf_counter() - started)
    finally:
        engine.close()
    return 1e3 * statistics.median(taken[len(taken) // 5 :])


def goals(served: dict[str, Any], bare: dict[str, Any], engine_ms: float) -> list[dict[str, Any]]:
    """Each with its figure, its limit and whether that is a ceiling."""
    alone = served["alone"]["latency_ms"]["p50"]
    share = served["many"]["requests_per_second"] / bare["many"]["requests_per_second"]
    rows = [
        ("resident memory", round(served["memory"]["peak"] / 1e6), "MB", 250, "under"),
        ("HTTP over the engine alone", round(alone / engine_ms, 2), "times", 2.0, "at most"),
        (f"requests/s of a bare endpoint, {CLIENTS} clients", round(share, 2), "of it", 0.4, "at least"),
    ]
    return [
        {"name": name, "value": value, "unit": unit, "goal": goal, "sense": sense}
        for name, value, unit, goal, sense in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Costs of the service with the embedded model.")
    parser.add_argument("--bundle", type=Path, default=EMBEDDED)
    parser.add_argument("--data", type=Path, default=ROOT / "runs" / "data" / "test.tsv", help="TSV of sources")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "embedded.json")
    options = parser.parse_args()
    lines = options.data.read_text(encoding="utf-8").splitlines()
    texts = list(dict.fromkeys(line.partition("\t")[0] for line in lines))[:1_000]
    mix = Mix(texts=tuple(texts), beams=(1,), max_length=None)
    served = over_http(attendant(options.bundle, options.precision, options.threads), mix, options.seconds)
    bare = over_http(["-m", "bench.http.bare_app"], mix, options.seconds)
    engine_ms = engine_alone(options.bundle, texts, options.threads, options.precision)
    found = goals(served, bare, engine_ms)
    write_record(options.out, "bench.http.embedded", found, served=served, bare=bare, engine_ms=round(engine_ms, 3))
    for row in found:
        print("{name}: {value} {unit} (goal: {sense} {goal})".format(**row))


if __name__ == "__main__":
    main()
