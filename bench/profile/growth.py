"""How time and memory grow with source length, target length, batch, beam, depth and width.

    python -m bench.profile.growth

One of them at a time, from the same point: the random base model, one request, greedy, source 20 tokens, 24 forced
target tokens. Each figure comes from a process of its own, so its peak of resident memory is that of this work alone.
Self-attention by itself (scores, softmax, weighted sum) is measured too, against length and width: the complexity table
gives it length^2 x width operations a layer, and the exponents are fitted to the measured times.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from attendant.export.graphs.builder import GraphBuilder
from bench.profile.roofline import Turn, best_of, session_options
from bench.report.record import RESULTS, RESULTS_HERE, warn_of_few_cores, write_record
from bench.versus.race import Work
from bench.versus.worker import Worker

START = Work(name="", requests=1, beam_size=1)
SWEEPS: dict[str, Sequence[int]] = {
    "source length": (8, 32, 128, 512),
    "target length": (8, 32, 128, 512),
    "batch": (1, 4, 16, 64),
    "beam": (1, 2, 4, 8, 16),
    "depth": (2, 4, 6, 8),
    "width": (256, 512, 768, 1024),
}
HEAD = 64  # features of a head
ATTENTION_LENGTHS, ATTENTION_WIDTHS = (128, 256, 512, 1024, 2048), (128, 256, 512, 1024)
ATTENTION_AT = (1024, 512)  # the length while the width changes, and the width while the length does


def work_at(sweep: str, value: int) -> Work:
    changes = {
        "source length": {"source_length": value},
        "target length": {"length": value},
        "batch": {"requests": value},
        "beam": {"beam_size": value},
    }
    return dataclasses.replace(START, **changes.get(sweep, {}))


def shape_at(sweep: str, value: int) -> Any:
    from bench.models.random_model import BASE

    if sweep == "depth":
        return dataclasses.replace(BASE, layers=value)
    if sweep == "width":
        return dataclasses.replace(BASE, d_model=value, d_ff=4 * value, heads=value // HEAD)
    return BASE


def point(bundle: Path, work: Work, vocabulary: int, precision: str, threads: int, repeats: int) -> dict[str, Any]:
    """One figure: milliseconds, the best of some, and megabytes."""
    asked = work.sources(vocabulary)
    with Worker("ours", bundle, precision, threads) as worker:
        before = worker.memory()["resident"]
        taken = [worker.answer(asked, work.beam_size, work.length)[0] for _ in range(repeats)]
        memory = worker.memory()
    return {
        "ms": round(1e3 * min(taken), 2),
        "peak_mb": round(memory["peak"] / 1e6, 1),
        "loaded_mb": round(before / 1e6, 1),
    }


def grow(sweeps: dict[str, Sequence[int]], precision: str, threads: int, repeats: int) -> list[dict[str, Any]]:
    from bench.models.random_model import prepare

    rows = []
    for sweep, values in sweeps.items():
        for value in values:
            shape = shape_at(sweep, value)
            found = point(prepare(shape).bundle, work_at(sweep, value), shape.vocabulary, precision, threads, repeats)
            rows.append({"sweep": sweep, "value": value, "precision": precision, **found})
            print("{sweep} {value}: {ms} ms, at most {peak_mb} MB ({loaded_mb} when loaded)".format(**rows[-1]))
    return rows


def attention_turn(length: int, width: int, threads: int) -> Turn:
    """softmax(Q K^T / sqrt(d)) V for all heads, without the projections."""
    graph, heads = GraphBuilder("attention"), width // HEAD
    q, k, v = (graph.input(name, "float32", [heads, "length", HEAD]) for name in "qkv")
    scores = graph.op("MatMul", q, graph.op("Transpose", k, perm=[0, 2, 1]))
    scaled = graph.op("Mul", scores, graph.constant(HEAD**-0.5, "float"))
    graph.output(graph.op("MatMul", graph.op("Softmax", scaled, axis=-1), v), "y", "float32", [heads, "length", HEAD])
    session = ort.InferenceSession(
        graph.build().SerializeToString(), session_options(threads), providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(size=(heads, length, HEAD)).astype(np.float32) for name in "qkv"}
    return lambda: session.run(None, feeds).clear()


def attention(threads: int, rounds: int) -> list[dict[str, Any]]:
    """Milliseconds by length and by width, and the exponent of each growth, fitted from the third value on."""
    length, width = ATTENTION_AT
    points = {("length", n): (n, width) for n in ATTENTION_LENGTHS}
    points |= {("width", d): (length, d) for d in ATTENTION_WIDTHS}
    best = best_of({key: attention_turn(*sizes, threads) for key, sizes in points.items()}, rounds)
    rows = []
    for sweep, expected in (("length", 2), ("width", 1)):
        times = {value: taken for (name, value), taken in best.items() if name == sweep}
        rows.append(
            {
                "sweep": sweep,
                "ms": {str(value): round(1e3 * taken, 3) for value, taken in times.items()},
                "exponent": round(exponent(times), 2),
                "expected": expected,
            }
        )
        print("self-attention grows with {sweep}^{exponent} (by the table: ^{expected})".format(**rows[-1]))
    return rows


def exponent(times: dict[int, float]) -> float:
    """The slope of log time over log value, without the first two, where other costs weigh most."""
    values = sorted(times)[2:] if len(times) > 3 else sorted(times)
    return float(np.polyfit(np.log(values), np.log([times[value] for value in values]), 1)[0])


def draw(rows: list[dict[str, Any]], attention_rows: list[dict[str, Any]], out: Path) -> list[Path]:
    """growth.png: time and memory in each sweep; attention.png: self-attention alone."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    out.mkdir(parents=True, exist_ok=True)
    sweeps = list(dict.fromkeys(row["sweep"] for row in rows))
    figure = Figure(figsize=(3.2 * max(1, len(sweeps)), 5.2), layout="constrained")
    grid = figure.subplots(2, max(1, len(sweeps)), squeeze=False)
    for column, sweep in enumerate(sweeps):
        mine = [row for row in rows if row["sweep"] == sweep]
        for line, (name, label) in enumerate((("ms", "milliseconds"), ("peak_mb", "peak memory, MB"))):
            axes = grid[line][column]
            axes.plot([row["value"] for row in mine], [row[name] for row in mine], marker="o")
            axes.set(xlabel=sweep, ylim=(0, 1.08 * max(row[name] for row in mine)))
            axes.set_ylabel(label if column == 0 else "")
            axes.grid(alpha=0.3)
    figure.savefig(out / f"{RESULTS_HERE.name}-growth.png", dpi=100)
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    for axes, row in zip(figure.subplots(1, 2), attention_rows, strict=True):
        values = [int(value) for value in row["ms"]]
        taken = list(row["ms"].values())
        axes.loglog(values, taken, marker="o", label=f"measured: {row['sweep']}^{row['exponent']}")
        ideal = [taken[-1] * (value / values[-1]) ** row["expected"] for value in values]
        axes.loglog(values, ideal, linestyle="--", label=f"{row['sweep']}^{row['expected']}")
        axes.set(xlabel=row["sweep"], ylabel="self-attention, milliseconds")
        axes.set_xticks(values, labels=[str(value) for value in values])
        axes.minorticks_off()
        axes.legend()
    figure.savefig(out / f"{RESULTS_HERE.name}-attention.png", dpi=100)
    return [out / f"{RESULTS_HERE.name}-growth.png", out / f"{RESULTS_HERE.name}-attention.png"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory against each size.")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sweeps", nargs="+", choices=list(SWEEPS), default=list(SWEEPS))
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "growth.json")
    parser.add_argument("--plots", type=Path, default=RESULTS.parent.parent / "docs" / "plots", help="where to draw")
    options = parser.parse_args()
    warn_of_few_cores(options.threads)
    wanted = {sweep: SWEEPS[sweep] for sweep in options.sweeps}
    rows = grow(wanted, options.precision, options.threads, options.repeats)
    attention_rows = attention(options.threads, 15)
    write_record(options.out, "bench.profile.growth", rows, attention=attention_rows, threads=options.threads)
    for path in draw(rows, attention_rows, options.plots):
        print(path)


if __name__ == "__main__":
    main()
