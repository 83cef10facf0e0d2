"""How many replicas, cores and bytes a load takes, from what one server was measured to do.

    python -m bench.report.sizing --rate 100000

Prints the table of docs/scaling.md; `--write` puts it there. Every figure is measured
(bench/results/amd-avx2/serving.json) or computed from that; a third of the replicas is spare, so that one of three
zones may fail.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.report.record import RESULTS
from bench.report.text import table, taken

PAGE = RESULTS.parent.parent / "docs" / "scaling.md"
MEASURED = RESULTS / "amd-avx2" / "serving.json"  # what the page is about
BEGIN, END = "<!-- python -m bench.report.sizing --write -->\n", "<!-- end -->\n"
RATE = 100_000.0  # requests/s of the worked example
SPARE = 1 / 3  # of the replicas
GIB = 2**30
HEADS = (
    "a replica's load",
    "requests/s of a replica",
    "p50, ms",
    "p99, ms",
    "replicas",
    "cores",
    "memory, GiB",
    "in flight",
    "core-hours per million",
)


@dataclass(frozen=True)
class Size:
    """What a load takes, with every replica at one measured point."""

    load: str
    rate: float  # requests/s of a replica
    p50: float  # ms
    p99: float
    replicas: int
    cores: int
    memory: float  # GiB, at the measured peak
    in_flight: int  # requests, by Little's law at the median latency
    core_hours: float  # for a million requests, the spare ones included


def sizes(record: dict[str, Any], rate: float, spare: float = SPARE) -> list[Size]:
    """One for each load that the service was measured under; those with a queue too."""
    cores = record["threads"]
    found = []
    for row in record["rows"]:
        if row["server"] != "attendant" or "way" in row:
            continue
        own = row["requests_per_second"]
        replicas = math.ceil(rate / own / (1 - spare))
        found.append(
            Size(
                load=row["load"],
                rate=own,
                p50=row["latency_ms"]["p50"],
                p99=row["latency_ms"]["p99"],
                replicas=replicas,
                cores=replicas * cores,
                memory=replicas * row["memory"]["peak"] / GIB,
                in_flight=round(rate * row["latency_ms"]["p50"] / 1000),
                core_hours=replicas * cores / rate * 1e6 / 3600,
            )
        )
    return found


def section(record: dict[str, Any], rate: float, spare: float = SPARE) -> str:
    rows = [
        (
            each.load,
            each.rate,
            each.p50,
            each.p99,
            each.replicas,
            each.cores,
            each.memory,
            each.in_flight,
            each.core_hours,
        )
        for each in sizes(record, rate, spare)
    ]
    about = f"{rate:,.0f} requests/s, {spare:.0%} of the replicas spare:"
    return f"{about}\n\n{table(HEADS, rows)}\n\nFrom {taken(record)}\n"


def rewritten(page: str, new: str) -> str:
    """A page with another section between its marks."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + new + END + rest.split(END)[1]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.report.sizing", description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=RATE, help="requests/s")
    parser.add_argument("--spare", type=float, default=SPARE, help="share of the replicas that may fail")
    parser.add_argument("--results", type=Path, default=MEASURED, help="what bench.http.serving wrote")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}, for {RATE:,.0f} requests/s")
    options = parser.parse_args()
    record = json.loads(options.results.read_text(encoding="utf-8"))
    if options.write:
        new = rewritten(PAGE.read_text(encoding="utf-8"), section(record, RATE))
        PAGE.write_text(new, encoding="utf-8")
    else:
        print(section(record, options.rate, options.spare))


if __name__ == "__main__":
    main()
