"""An iteration of the engine in numbers: how long a lane's thread spends in the graphs, and in what is around them.

    python -m bench.profile.iteration [--json FILE]

The embedded model and the random base model in int8, with all work queued at once. For each part: seconds of wall time
in all lanes, as a share of all, per step; and of the parts in Python what of it was waiting (for the interpreter's
lock, mostly), which is wall time less processor time of the thread. Steps whose searches are all compiled follow each
other in one call, so that the graph and the search are one part; the kernels have to be compiled.
"""

from __future__ import annotations

import argparse
import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from attendant.service.engine.batch.compiled import CompiledRows
from attendant.service.engine.batch.job import Job
from attendant.service.engine.batch.lane import Lane
from attendant.service.engine.batch.runner import Runner
from attendant.service.engine.observer import EngineObserver
from attendant.service.engine.queue.scheduler import Scheduler
from bench.models.random_model import BASE, prepare
from bench.report.record import RESULTS_HERE, write_record
from bench.versus.engines import OurEngine, sources
from bench.versus.words import EMBEDDED, read_words

ROOT = Path(__file__).parents[2]
# Nested parts count once, as the innermost.
PARTS: tuple[tuple[str, type, str], ...] = (
    ("encoder graph", Runner, "encode"),
    ("encoder graph", Runner, "encode_ahead"),
    ("steps: graph, search, moving rows", CompiledRows, "decode"),
    ("adding rows", CompiledRows, "add"),
    ("reading answers", CompiledRows, "_look_at"),
    ("emitting results", Job, "complete"),
    ("admitting and releasing", Scheduler, "admit"),
    ("admitting and releasing", Scheduler, "release"),
    ("the rest of an iteration", Lane, "iteration"),
)
COMPILED = ("encoder graph", "steps: graph, search, moving rows")  # without the interpreter's lock


class Clock:
    """Wall and processor time of each part, in each thread, without that of the parts inside it."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = defaultdict(float)
        self.processor: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self.steps = 0  # of the decoder, of which a call may take several
        self._inside = threading.local()
        self._lock = threading.Lock()

    def count_step(self, _rows: int, _seconds: float) -> None:
        with self._lock:
            self.steps += 1

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            stack = self._inside.__dict__.setdefault("stack", [])
            stack.append([0.0, 0.0])
            wall, processor = time.perf_counter(), time.thread_time()
            try:
                return function(*args, **options)
            finally:
                taken = time.perf_counter() - wall, time.thread_time() - processor
                inner = stack.pop()
                if stack:
                    stack[-1][0] += taken[0]
                    stack[-1][1] += taken[1]
                with self._lock:
                    self.wall[part] += taken[0] - inner[0]
                    self.processor[part] += taken[1] - inner[1]
                    self.calls[part] += 1

        return call


@contextmanager
def clocked() -> Iterator[Clock]:
    clock = Clock()
    with ExitStack() as stack:
        for part, owner, name in PARTS:
            stack.enter_context(mock.patch.object(owner, name, clock.timed(part, getattr(owner, name))))
        stack.enter_context(mock.patch.object(EngineObserver, "stepped", new=clock.count_step))
        yield clock


def measure(engine: OurEngine, asked: list[Any], beam_size: int, length: int | None, repeats: int) -> dict[str, Any]:
    """The best of some repeats: its seconds, and the parts of it."""
    best: dict[str, Any] = {"seconds": float("inf")}
    engine.answer(asked, beam_size, length)
    for _ in range(repeats):
        started = time.perf_counter()
        engine.answer(asked, beam_size, length)
        plain = time.perf_counter() - started
        with clocked() as clock:
            engine.answer(asked, beam_size, length)
        if plain < best["seconds"]:
            best = {"seconds": plain, "parts": parts_of(clock)}
    return best


def parts_of(clock: Clock) -> list[dict[str, Any]]:
    total, steps = sum(clock.wall.values()), max(1, clock.steps)
    return [
        {
            "part": part,
            "share": round(clock.wall[part] / total, 3),
            "microseconds_a_step": round(1e6 * clock.wall[part] / steps, 1),
            "calls": clock.calls[part],
            "waiting": None if part in COMPILED else round(1 - clock.processor[part] / clock.wall[part], 2),
        }
        for part in dict.fromkeys(part for part, _, _ in PARTS)
        if clock.wall[part] > 0
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Where the time of an iteration of the engine goes.")
    parser.add_argument("--data", type=Path, default=ROOT / "runs" / "data" / "test.tsv", help="TSV of sources")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=("embedded", "base"))
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "iteration.json")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.only != "base":
        words = [list(word) for word in read_words(options.data)]
        cases = [("1,024 words", 1024, 1), ("256 words", 256, 4), ("1 word", 1, 1)]
        asked = [(f"embedded, {name}, beam {beam}", words[:count], beam, None) for name, count, beam in cases]
        rows += run(EMBEDDED, asked, options.repeats)
    if options.only != "embedded":
        cases = [("32 requests", 32, 1), ("16 requests", 16, 4), ("1 request", 1, 1)]
        made = [
            (f"base, {name}, beam {beam}", sources(count, 20, BASE.vocabulary), beam, 24) for name, count, beam in cases
        ]
        rows += run(prepare(BASE).bundle, made, options.repeats)
    write_record(options.out, "bench.profile.iteration", rows)


def run(bundle: Path, cases: list[tuple[str, list[Any], int, int | None]], repeats: int) -> list[dict[str, Any]]:
    """A row for each case, shown as it is measured."""
    engine, rows = OurEngine(bundle, "int8", 0), []
    try:
        for name, asked, beam_size, length in cases:
            found = measure(engine, asked, beam_size, length, repeats)
            rows.append({"name": name, **found})
            print(f"{name}: {1e3 * found['seconds']:.1f} ms")
            for part in found["parts"]:
                waiting = "" if part["waiting"] is None else f", {part['waiting']:.0%} of it waiting"
                print("  {part:<38} {share:>6.1%} {microseconds_a_step:>8.0f} us a step".format(**part) + waiting)
    finally:
        engine.close()
    return rows


if __name__ == "__main__":
    main()
