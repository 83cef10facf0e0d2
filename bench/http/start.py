"""How soon `attendant serve` is ready after its process starts, and how much memory it holds then.

    python -m bench.http.start [--large] [--times 5]

The embedded model, the random base model and, with --large, that of NLLB-600M's shape (`bench.versus.large`), as a user
starts them: int8, every file's digest checked, the certificate replayed. The shortest of several starts counts, so
files are in the system's cache.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from bench.http.servers import attendant, serving
from bench.report.goals import goal_of, goal_text
from bench.report.record import RESULTS_HERE, write_record
from bench.versus.words import EMBEDDED


def measure(name: str, bundle: Path, times: int) -> dict[str, Any]:
    """Starts a server `times` times, each ended once it is ready."""
    seconds, memory = [], []
    for _ in range(times):
        with serving(attendant(bundle)) as server:
            seconds.append(server.ready_seconds)
            memory.append(server.memory())
    return {
        "name": name,
        "ready_seconds": round(min(seconds), 2),
        "median_seconds": round(statistics.median(seconds), 2),
        "resident_mb": round(min(each["resident"] for each in memory) / 1e6),
        "peak_mb": round(min(each["peak"] for each in memory) / 1e6),
        "goal": goal_of("start", name),
        "times": times,
    }


def bundles(large: bool) -> dict[str, Path]:
    from bench.models.random_model import BASE, LARGE, prepare

    shapes = {"base": BASE, "large": LARGE} if large else {"base": BASE}
    return {"embedded": EMBEDDED, **{name: prepare(shape).bundle for name, shape in shapes.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description="From the start of `attendant serve` until it is ready.")
    parser.add_argument("--large", action="store_true", help="also a model of NLLB-600M's shape, 9 GB on disk")
    parser.add_argument("--times", type=int, default=5, help="starts of each")
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "start.json")
    options = parser.parse_args()
    rows = [measure(name, bundle, options.times) for name, bundle in bundles(options.large).items()]
    write_record(options.out, "bench.http.start", rows)
    for row in rows:
        text = "{name}: ready after {ready_seconds} s (median {median_seconds}), {resident_mb} MB resident".format(
            **row
        )
        print(text + goal_text(row["goal"]))


if __name__ == "__main__":
    main()
