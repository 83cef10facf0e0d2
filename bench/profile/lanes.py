"""How many lanes are best on machines with more cores than this one: a simulation from times measured here.

    python -m bench.profile.lanes [--serial SHARE]

Measured on this machine, for the random base model and the embedded model in int8: a step's graph by rows and threads,
the Python of a step by rows (processor time of everything that is not compiled, as `bench.profile.iteration` has it),
and memory bandwidth.
A step on n threads is taken to last serial + parallel / n, fitted for each number of rows; --serial sets the serial
share of a step instead, for a machine with one core or with other work on it, where threads cannot be compared.

Simulated: machines of 2 to 64 cores with 1, 2, 4 ... lanes. Each has a core of its own and all share the others, as in
the engine, whose own scheduler spreads the rows. Lanes share two things more. Python runs in one lane at a time: a
closed queueing network with the lock as its only queue, solved by mean value analysis. And each lane reads all weights
in each step, from a memory that is taken to grow with the cores up to BANDWIDTH_CORES, unless they fit in CACHE_BYTES.

What is not in it: encoding, HTTP and tokenizers, clocks that fall when all cores are busy, caches and memory that are
further away from some cores. Figures for more cores than this machine has are extrapolated, not measured.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attendant.export.bundle import Bundle, read_bundle
from attendant.service.engine.batch.job import Job
from attendant.service.engine.observer import EngineObserver
from attendant.service.engine.queue.scheduler import Scheduler
from attendant.service.engine.resources import MAX_ROWS, lanes_for
from attendant.service.engine.search.search import SpecialIds
from attendant.service.engine.tasks import Generate, Options
from bench.models.random_model import BASE, prepare
from bench.profile.iteration import COMPILED, clocked
from bench.profile.roofline import WEIGHT_BYTES, Step, best_of, limits_here, step_parameters
from bench.report.record import RESULTS_HERE, write_record
from bench.versus.engines import SOURCE_LENGTH, OurEngine, sources
from bench.versus.words import EMBEDDED

CORES = (2, 4, 8, 16, 32, 64)
IN_FLIGHT = (1, 8, 24, 64, 128, 256)  # rows
MEASURED_ROWS = (1, 4, 8, 16, 32, 64)
PYTHON_ROWS = (1, 8, 64)
TARGET_LENGTH = 8  # tokens of the answers whose Python is measured
BANDWIDTH_CORES = 16  # from which on more cores read no more bytes a second
CACHE_BYTES = 16e6  # of weights that stay in the processors' caches
PRECISION = "int8"


@dataclass(frozen=True)
class Costs:
    """Seconds of a step by its rows; `parallel` is divided by the threads, `python` holds the interpreter's lock."""

    rows: tuple[int, ...]
    serial: tuple[float, ...]
    parallel: tuple[float, ...]
    python: tuple[float, ...]
    weight_bytes: int  # read from memory by each step of each lane

    def graph_seconds(self, rows: int, threads: float) -> float:
        return self._at(rows, self.serial) + self._at(rows, self.parallel) / threads

    def python_seconds(self, rows: int) -> float:
        return self._at(rows, self.python)

    def _at(self, rows: int, seconds: tuple[float, ...]) -> float:
        return float(np.interp(rows, self.rows, seconds))


@dataclass(frozen=True)
class Machine:
    cores: int
    bandwidth: float  # bytes a second


@dataclass(frozen=True)
class Point:
    step_seconds: float  # from one step of a lane to its next
    tokens_per_second: float  # of all lanes


def fit(seconds: dict[int, float], share: float | None = None) -> tuple[float, float]:
    """The serial and the parallel part of a step, neither below zero, from its seconds by number of threads.

    With a `share` that is taken to be serial, only the seconds of one thread count.
    """
    if share is not None:
        return share * seconds[1], (1 - share) * seconds[1]
    parallel, serial = np.polyfit([1 / threads for threads in seconds], list(seconds.values()), 1)
    if serial < 0:
        return 0.0, float(np.mean([threads * taken for threads, taken in seconds.items()]))
    if parallel < 0:
        return min(seconds.values()), 0.0
    return float(serial), float(parallel)


def bytes_on_disk(bundle: Bundle, precision: str) -> int:
    """Those of a variant's graph and weights."""
    directory = bundle.variants[precision].graphs["full"].parent
    return sum(file.stat().st_size for file in directory.iterdir())


def spread(rows: int, lanes: int) -> list[int]:
    """Rows of each busy lane when so many requests of one row are in flight, by the engine's scheduler."""
    scheduler = Scheduler(lanes, MAX_ROWS, rows, 2**31)
    task = Generate(source=(4,), options=Options(beam_size=1, max_length=1))
    special, observer = SpecialIds(0, 2, 3), EngineObserver()
    for _ in range(rows):
        scheduler.submit([Job(task, 0, lambda _: None, None, 0.0, special, observer)])
    taken = [len(scheduler.admit(lane, 2**31)) for lane in range(lanes)]
    return [count for count in taken if count]


def simulate(costs: Costs, machine: Machine, lanes: int, in_flight: int) -> Point:
    """One lane alone has every core, as in the engine; of several each has a core, and those busy share the rest."""
    busy = spread(in_flight, lanes)
    threads = machine.cores if len(busy) == 1 else 1 + (machine.cores - lanes) / len(busy)
    rows = max(busy)
    reading = len(busy) * costs.weight_bytes / machine.bandwidth
    step = max(closed_cycle(len(busy), costs.graph_seconds(rows, threads), costs.python_seconds(rows)), reading)
    return Point(step, sum(busy) / step)


def closed_cycle(lanes: int, apart: float, locked: float) -> float:
    """Seconds of an iteration for each of some lanes, which compute apart and then queue for one lock."""
    waiting, response = 0.0, locked
    for lane in range(1, lanes + 1):
        response = locked * (1 + waiting)
        waiting = lane * response / (apart + response)
    return apart + response


def bandwidth_of(cores: int, measured: float, measured_cores: int) -> float:
    """Bytes a second of a machine, from those of this one."""
    return measured * min(cores, BANDWIDTH_CORES) / min(measured_cores, BANDWIDTH_CORES)


def lane_counts(cores: int) -> list[int]:
    return [2**n for n in range(cores.bit_length()) if 2**n <= cores]


def compare(costs: Costs, machine: Machine, chosen: int) -> dict[str, Any]:
    """For each load the tokens a second and the step of every number of lanes, the best, and what the chosen loses."""
    counts = sorted({*lane_counts(machine.cores), chosen})
    loads = []
    for load in (*IN_FLIGHT, None):
        points = {lanes: simulate(costs, machine, lanes, load or lanes * MAX_ROWS) for lanes in counts}
        best = max(counts, key=lambda lanes: (round(points[lanes].tokens_per_second, 3), -lanes))
        loads.append(
            {
                "rows": load,
                "best": best,
                "tokens_per_second": {lanes: round(point.tokens_per_second) for lanes, point in points.items()},
                "step_ms": {lanes: round(1e3 * point.step_seconds, 3) for lanes, point in points.items()},
                "regret": round(1 - points[chosen].tokens_per_second / points[best].tokens_per_second, 3),
            }
        )
    return {"cores": machine.cores, "chosen": chosen, "loads": loads}


def measure_graphs(
    bundle: Path, threads: Sequence[int], rounds: int, share: float | None
) -> dict[int, tuple[float, float]]:
    """The serial and parallel seconds of a step by its rows."""
    read = read_bundle(bundle)
    turns = {(rows, count): Step(read, PRECISION, rows, count) for rows in MEASURED_ROWS for count in threads}
    best = best_of(turns, rounds)
    return {rows: fit({count: best[rows, count] for count in threads}, share) for rows in MEASURED_ROWS}


def measure_python(bundle: Path, repeats: int) -> dict[int, float]:
    """Processor seconds of an iteration outside the graphs, by rows, in one lane of one thread."""
    vocabulary = read_bundle(bundle).sizes.source_vocab
    engine, found = OurEngine(bundle, PRECISION, 1, lanes=1), {}
    try:
        for rows in PYTHON_ROWS:
            asked, seconds = sources(rows, SOURCE_LENGTH, vocabulary), []
            for _ in range(repeats):
                with clocked() as clock:
                    engine.answer(asked, 1, TARGET_LENGTH)
                taken = sum(value for part, value in clock.processor.items() if part not in COMPILED)
                seconds.append(taken / clock.steps)
            found[rows] = min(seconds)
    finally:
        engine.close()
    return found


def measure(bundle: Path, threads: Sequence[int], rounds: int, share: float | None) -> Costs:
    graphs, python = measure_graphs(bundle, threads, rounds, share), measure_python(bundle, max(2, rounds // 10))
    read = WEIGHT_BYTES[PRECISION] * step_parameters(read_bundle(bundle).sizes)
    return Costs(
        MEASURED_ROWS,
        tuple(graphs[rows][0] for rows in MEASURED_ROWS),
        tuple(graphs[rows][1] for rows in MEASURED_ROWS),
        tuple(float(np.interp(rows, PYTHON_ROWS, list(python.values()))) for rows in MEASURED_ROWS),
        read if read > CACHE_BYTES else 0,
    )


def measured_row(name: str, costs: Costs) -> dict[str, Any]:
    parts = {"serial": costs.serial, "parallel": costs.parallel, "python": costs.python}
    return {
        "model": name,
        "weight_bytes": costs.weight_bytes,
        "steps": [
            {"rows": rows, **{f"{part}_ms": round(1e3 * seconds[i], 4) for part, seconds in parts.items()}}
            for i, rows in enumerate(costs.rows)
        ],
    }


def show(row: dict[str, Any]) -> None:
    cells = " ".join(
        f"{load['rows'] or 'full':>5}: {load['best']:>2} ({load['regret']:>4.0%})" for load in row["loads"]
    )
    print(f"{row['model']:<9}{row['cores']:>3} cores, {row['chosen']:>2} chosen | {cells}")


def main() -> None:
    parser = argparse.ArgumentParser(description="The number of lanes by simulation, from times measured here.")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "lanes.json")
    parser.add_argument("--serial", type=float, metavar="SHARE", help="of a step that threads do not divide, 0 to 1")
    options = parser.parse_args()
    here = len(os.sched_getaffinity(0))
    threads = lane_counts(here) if options.serial is None else [1]
    if len(threads) == 1 and options.serial is None:
        parser.error("one core cannot tell what threads divide; name the share that they do not with --serial.")
    bandwidth = 1e9 * limits_here(here)["bandwidth_gb_s"]
    measured, rows = [], []
    print(
        f"memory {bandwidth / 1e9:.1f} GB/s. For each number of rows in flight: the best lanes (what the rule loses)."
    )
    for name, bundle in (("base", prepare(BASE).bundle), ("embedded", EMBEDDED)):
        costs = measure(bundle, threads, options.rounds, options.serial)
        measured.append(measured_row(name, costs))
        weights = bytes_on_disk(read_bundle(bundle), PRECISION)
        for cores in CORES:
            machine = Machine(cores, bandwidth_of(cores, bandwidth, here))
            rows.append({"model": name, **compare(costs, machine, lanes_for(cores, weights))})
            show(rows[-1])
    write_record(
        options.out,
        "bench.profile.lanes",
        rows,
        bandwidth_gb_s=round(bandwidth / 1e9, 2),
        measured_threads=threads,
        serial=options.serial,
        measured=measured,
    )


if __name__ == "__main__":
    main()
