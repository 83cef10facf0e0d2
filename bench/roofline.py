"""How close a decoder step comes to what the machine can do, and where the rest of it goes.

    python -m bench.roofline

Measured in one run, with the same number of threads: the bytes a second that memory gives, the operations a second of
onnxruntime's matrix products at 64 rows, and the base model's step at several numbers of rows (12 tokens cached, source
20). A step of few rows cannot be faster than its weights stream from memory, one of many rows than its multiply-adds.
Goal: within 1.5 times the larger of the two, at 1 row and at 64. onnxruntime's profiler gives each operator's share.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from bench import kernels
from bench.engines import SOURCE_LENGTH
from bench.record import RESULTS_HERE, warn_of_few_cores, write_record
from export import signature
from export.builder import GraphBuilder
from export.bundle import Bundle, read_bundle
from export.signature import Sizes
from service.engine.runtime import CPU, SLOW_OPTIMIZERS

ROWS = (1, 4, 32, 64)
CACHED = 12  # tokens
PLACES = 64  # of the cache
CANDIDATES = 8
IN_A_ROW = 10  # turns of one before the next, as a request has its steps
GOAL = 1.5
GOAL_ROWS = (1, 64)
STREAMED = 256 * 2**20  # bytes, far more than any cache holds
PRODUCT_KINDS = {"fp32": "f32 MatMul", "int8": "int8 calibrated, fused, 7-bit weights"}
WEIGHT_BYTES = {"fp32": 4, "int8": 1}

Turn = Callable[[], None]


def bandwidth_turn(threads: int) -> Turn:
    """Reads STREAMED bytes once, in as many threads."""
    parts = np.array_split(np.ones(STREAMED // 4, np.float32), threads)
    pool = ThreadPoolExecutor(threads)
    return lambda: [*pool.map(np.max, parts)].clear()


def product_turn(precision: str, rows: int, threads: int) -> tuple[Turn, int]:
    """A stack of matrix products as `bench.kernels` has them, and its operations."""
    rng = np.random.default_rng(0)
    shapes = [(kernels.NARROW, kernels.WIDE), (kernels.WIDE, kernels.NARROW)] * kernels.PAIRS
    graph = GraphBuilder("stack")
    x = graph.input("x", "float32", ["rows", kernels.NARROW])
    for i, shape in enumerate(shapes):
        weight = rng.normal(size=shape, scale=shape[0] ** -0.5).astype(np.float32)
        x = kernels.KINDS[PRODUCT_KINDS[precision]](graph, x, f"w{i}", weight, 4.0)
    graph.output(x, "y", "float32", ["rows", kernels.NARROW])
    session = ort.InferenceSession(
        graph.build().SerializeToString(), session_options(threads), providers=["CPUExecutionProvider"]
    )
    feeds = {"x": rng.normal(size=(rows, kernels.NARROW)).astype(np.float32)}
    return lambda: session.run(None, feeds).clear(), 2 * rows * sum(a * b for a, b in shapes)


class Step:
    """The step graph of a variant with made-up feeds, bound as the engine binds them: the cache in place."""

    def __init__(self, bundle: Bundle, precision: str, rows: int, threads: int, profile: str = "") -> None:
        graphs = bundle.variants[precision].graphs
        name = "fast_step" if "fast_step" in graphs else "step"
        self.session = ort.InferenceSession(
            str(graphs[name]), session_options(threads, profile), providers=[CPU], disabled_optimizers=SLOW_OPTIMIZERS
        )
        cache = "int8" if "int8" in self.session.get_outputs()[-1].type else "float32"
        feeds = step_feeds(bundle.sizes, rows, cache)
        self._bound = self.session.io_binding()
        held = {key: ort.OrtValue.ortvalue_from_numpy(value) for key, value in feeds.items()}
        for key, value in held.items():
            self._bound.bind_ortvalue_input(key, value)
        for output in self.session.get_outputs():
            past = output.name.replace("present_", "self_").replace("kept_", "cross_")
            if past in held:
                self._bound.bind_ortvalue_output(output.name, held[past])
            elif output.name.startswith("top_"):
                self._bound.bind_output(output.name, "cpu")

    def __call__(self) -> None:
        self.session.run_with_iobinding(self._bound)


def step_feeds(sizes: Sizes, rows: int, cache: str) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs of a step for `rows` requests of one row each, made from the table of its axes."""
    rng = np.random.default_rng(0)
    feeds = {
        "token": rng.integers(4, sizes.target_vocab, rows),
        "position": np.full(rows, CACHED),
        "top": np.array([CANDIDATES]),
        "source_length": np.full(rows, SOURCE_LENGTH),
    }
    axes = {"batch": rows, "rows": rows, "source": SOURCE_LENGTH, "past": PLACES}
    for value in signature.inputs("step", sizes):
        if value.name not in feeds:
            shape = [axes[axis] if isinstance(axis, str) else axis for axis in value.shape(sizes)]
            feeds[value.name] = (rng.normal(size=shape) * (30 if cache == "int8" else 1)).astype(cache)
    return feeds


def session_options(threads: int, profile: str = "") -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = False  # as in the service
    options.add_session_config_entry("session.force_spinning_stop", "1")  # a session between its turns disturbs none
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    return options


def step_parameters(sizes: Sizes) -> int:
    """Weights that one step multiplies with: self-attention, cross-attention's queries and output, feed-forward."""
    layer = 6 * sizes.d_model**2 + 2 * sizes.d_model * sizes.d_ff
    return sizes.decoder_layers * layer + sizes.target_vocab * sizes.d_model


def best_of(turns: dict[Any, Turn], rounds: int) -> dict[Any, float]:
    """The shortest seconds of each, taken in turn, a few in a row."""
    best = dict.fromkeys(turns, float("inf"))
    for _ in range(-(-rounds // IN_A_ROW)):
        for key, turn in turns.items():
            for _ in range(IN_A_ROW):
                started = time.perf_counter()
                turn()
                best[key] = min(best[key], time.perf_counter() - started)
    return best


def operators(bundle: Bundle, precision: str, rows: int, threads: int, runs: int) -> list[dict[str, Any]]:
    """Each operator's milliseconds in a step and its share, largest first; the product with the vocabulary alone."""
    with tempfile.TemporaryDirectory() as directory:
        step = Step(bundle, precision, rows, threads, profile=str(Path(directory) / "profile"))
        for _ in range(runs):
            step()
        events = json.loads(Path(step.session.end_profiling()).read_text(encoding="utf-8"))
    return shares(events, bundle.sizes.target_vocab, runs)


def shares(events: list[dict[str, Any]], vocabulary: int, runs: int) -> list[dict[str, Any]]:
    """By operator, from the profiler's events."""
    totals: dict[str, float] = defaultdict(float)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            totals[operator_name(event["args"], vocabulary)] += event["dur"]
    whole = sum(totals.values()) or 1.0
    return [
        {"operator": name, "ms": round(1e-3 * total / runs, 4), "share": round(total / whole, 3)}
        for name, total in sorted(totals.items(), key=lambda pair: -pair[1])
    ]


def operator_name(args: dict[str, Any], vocabulary: int) -> str:
    shapes = [shape for output in args.get("output_type_shape", []) for shape in output.values()]
    wide = any(shape and shape[-1] == vocabulary for shape in shapes)
    return f"{args['op_name']}, vocabulary" if wide else str(args["op_name"])


def measure(bundle: Bundle, threads: int, rounds: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the machine gives, and a row for each precision and number of rows."""
    precisions = [name for name in WEIGHT_BYTES if name in bundle.variants]
    turns: dict[Any, Turn] = {"bandwidth": bandwidth_turn(threads)}
    operations = {}
    for precision in precisions:
        turns["product", precision], operations[precision] = product_turn(precision, max(ROWS), threads)
        turns |= {("step", precision, rows): Step(bundle, precision, rows, threads) for rows in ROWS}
    best = best_of(turns, rounds)
    bandwidth = STREAMED / best["bandwidth"]
    rates = {precision: operations[precision] / best["product", precision] for precision in precisions}
    parameters = step_parameters(bundle.sizes)
    found = []
    for precision in precisions:
        for rows in ROWS:
            limits = {
                "stream_ms": 1e3 * parameters * WEIGHT_BYTES[precision] / bandwidth,
                "multiply_ms": 1e3 * 2 * parameters * rows / rates[precision],
            }
            taken = 1e3 * best["step", precision, rows]
            found.append(
                {
                    "precision": precision,
                    "rows": rows,
                    "step_ms": round(taken, 3),
                    **{name: round(value, 3) for name, value in limits.items()},
                    "times_limit": round(taken / max(limits.values()), 2),
                    "goal": GOAL if rows in GOAL_ROWS else None,
                    "operators": operators(bundle, precision, rows, threads, rounds),
                }
            )
    machine = {
        "bandwidth_gb_s": round(bandwidth / 1e9, 2),
        **{f"{precision}_gop_s": round(rate / 1e9, 1) for precision, rate in rates.items()},
        "step_parameters": parameters,
    }
    return machine, found


def main() -> None:
    parser = argparse.ArgumentParser(description="A decoder step against memory bandwidth and arithmetic.")
    parser.add_argument("--bundle", type=Path, help="another than the random base model's")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "roofline.json")
    options = parser.parse_args()
    warn_of_few_cores(options.threads)
    if options.bundle is None:
        from bench.random_model import BASE, prepare

        options.bundle = prepare(BASE).bundle
    limits, rows = measure(read_bundle(options.bundle), options.threads, options.rounds)
    write_record(options.out, "bench.roofline", rows, limits=limits, threads=options.threads)
    print(", ".join(f"{name} {value}" for name, value in limits.items()))
    for row in rows:
        goal = f" (goal {row['goal']})" if row["goal"] else ""
        print("{precision} {rows:>3} rows: {step_ms} ms, {times_limit} times the limit".format(**row) + goal)
        print("     " + ", ".join(f"{o['operator']} {o['share']:.0%}" for o in row["operators"][:8]))


if __name__ == "__main__":
    main()
