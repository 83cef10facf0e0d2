"""What encoding sources ahead would save: the encoder's time for the same words, so many in a run.

    python -m bench.profile.encoding [--data runs/data/test.tsv]

If a source were encoded when it has a row, a run of the encoder would hold as many as rows have become free. Here the
sizes of a run take turns, on one thread, the best of some repeats each. How many sources a run holds in the engine is
counted too, with all words queued at once.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from attendant.export.bundle import padded_width, read_bundle
from attendant.service.engine.batch.rows import group_by_length
from attendant.service.engine.batch.runner import Runner
from attendant.service.engine.batch.runtime import Runtime
from attendant.service.engine.tasks import Ids
from bench.profile.iteration import clocked
from bench.report.record import RESULTS_HERE, write_record
from bench.versus.engines import OurEngine
from bench.versus.words import EMBEDDED, read_words

ROOT = Path(__file__).parents[2]
WORDS = 1024
SIZES = (1, 2, 4, 8, 16, 32, 64)


def encode_all(runner: Runner, words: list[Ids], size: int) -> float:
    """Seconds for all words, `size` of them at a time as the engine would be given them."""
    seconds = 0.0
    for first in range(0, len(words), size):
        together = sorted(words[first : first + size], key=len)
        width = padded_width(len(together[-1]) + 1)
        started, held = time.perf_counter(), 0
        for group in group_by_length(together):
            runner.encode(group, held, width)
            held += len(group)
        seconds += time.perf_counter() - started
    return seconds


def sources_a_run(words: list[Ids], beam_size: int) -> float:
    """How many sources a run of the encoder holds in the engine, on average."""
    engine = OurEngine(EMBEDDED, "int8", 0)
    try:
        with clocked() as clock:
            engine.answer([list(word) for word in words], beam_size, None)
    finally:
        engine.close()
    return len(words) / clock.calls["encoder graph"]


def main() -> None:
    parser = argparse.ArgumentParser(description="The encoder's time by sources in a run.")
    parser.add_argument("--data", type=Path, default=ROOT / "runs" / "data" / "test.tsv", help="TSV of sources")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "encoding.json")
    options = parser.parse_args()
    words = read_words(options.data)[:WORDS]
    runner = Runner(Runtime(read_bundle(EMBEDDED), "cpu", "int8", 1), max(SIZES))
    best = dict.fromkeys(SIZES, float("inf"))
    for _ in range(options.repeats):
        for size in SIZES:
            best[size] = min(best[size], encode_all(runner, words, size))
    rows: list[dict[str, Any]] = [
        {
            "sources": size,
            "milliseconds": round(1e3 * seconds, 1),
            "of_the_best": round(seconds / min(best.values()), 3),
        }
        for size, seconds in best.items()
    ]
    for row in rows:
        print("{sources:>3} sources at a time: {milliseconds:>6.1f} ms, {of_the_best:.2f} times the best".format(**row))
    held = {f"beam {beam}": round(sources_a_run(words, beam), 1) for beam in (1, 4)}
    print("in the engine: " + ", ".join(f"{count} sources a run with {name}" for name, count in held.items()))
    write_record(options.out, "bench.profile.encoding", rows, words=len(words), sources_a_run=held)


if __name__ == "__main__":
    main()
