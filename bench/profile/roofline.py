"""How close a decoder step comes to what the machine can do, and where the rest of it goes.

    python -m bench.profile.roofline

Measured in one run, with the same number of threads: what our own products do at best (`bench.profile.products`; a C++
compiler is needed), that is operations a second on weights in the nearest cache and bytes a second of weights from
memory; and the base model's step at several numbers of rows (12 tokens cached, source 20). A step of few rows cannot be
faster than its weights come from memory, one of many rows than its multiply-adds. `times_limit` is the step over the
larger of the two. onnxruntime's profiler gives each operator's share.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from attendant import kernels
from attendant.export.bundle import Bundle, read_bundle
from attendant.export.runner import KERNELS, ways_to_run
from attendant.export.signature import Sizes
from attendant.service.engine.batch.runtime import CPU, SLOW_OPTIMIZERS
from bench.profile.products import build, limits
from bench.report.goals import goal_of, goal_text
from bench.report.record import RESULTS_HERE, warn_of_few_cores, write_record
from bench.versus.engines import SOURCE_LENGTH

ROWS = (1, 4, 32, 64)
CACHED = 12  # tokens
PLACES = 64  # of the cache
CANDIDATES = 8
IN_A_ROW = 10  # turns of one before the next, as a request has its steps
WEIGHT_BYTES = {"fp32": 4, "int8": 1}

Turn = Callable[[], None]


def limits_here(threads: int, times: int = 2) -> dict[str, float]:
    """What the machine gives to products on the path that the service uses here, the best of some times."""
    with tempfile.TemporaryDirectory() as directory:
        program = build(Path(directory))
        found = [limits(program, kernels.path_name() or "", threads) for _ in range(times)]
    names = {"bandwidth_gb_s": "bandwidth_gbs", "fp32_gop_s": "f32_peak_gops", "int8_gop_s": "peak_gops"}
    return {name: max(row[of] for row in found) for name, of in names.items()}


def load(bundle: Bundle, precision: str, name: str, threads: int, profile: str = "") -> ort.InferenceSession:
    """The graph that the service decodes with here."""
    graphs, options = bundle.variants[precision].graphs, session_options(threads, profile)
    kind = "kernel_" if KERNELS in ways_to_run(graphs) else ""
    if kind:
        kernels.register(options, threads)
    return ort.InferenceSession(
        str(graphs[f"{kind}{name}"]), options, providers=[CPU], disabled_optimizers=SLOW_OPTIMIZERS
    )


class Step:
    """The step graph of a variant with made-up feeds, bound as the engine binds them: the cache in place."""

    def __init__(self, bundle: Bundle, precision: str, rows: int, threads: int, profile: str = "") -> None:
        self.session = load(bundle, precision, "step", threads, profile)
        feeds = step_feeds(self.session, rows)
        self._bound = self.session.io_binding()
        held = {key: ort.OrtValue.ortvalue_from_numpy(value) for key, value in feeds.items()}
        for key, value in held.items():
            self._bound.bind_ortvalue_input(key, value)
        for output in self.session.get_outputs():
            past = output.name.replace("present_", "self_")
            if past in held:
                self._bound.bind_ortvalue_output(output.name, held[past])
            elif output.name.startswith("top_"):
                self._bound.bind_output(output.name, "cpu")

    def __call__(self) -> None:
        self.session.run_with_iobinding(self._bound)


def step_feeds(session: ort.InferenceSession, rows: int) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs of a step for `rows` requests of one row each, made from the graph's own axes."""
    rng = np.random.default_rng(0)
    feeds = {
        "token": rng.integers(4, 10, rows),
        "position": np.full(rows, CACHED),
        "top": np.array([CANDIDATES]),
        "whole": np.zeros(rows, np.int64),
        "source_row": np.arange(rows),
        "source_length": np.full(rows, SOURCE_LENGTH),
    }
    axes = {"sources": rows, "rows": rows, "source": SOURCE_LENGTH, "past": PLACES}
    found = {}
    for value in session.get_inputs():
        shape = [axes.get(axis, axis) for axis in value.shape]
        if value.name in feeds:
            found[value.name] = feeds[value.name]
        elif value.type == "tensor(int8)":
            found[value.name] = rng.integers(-127, 128, shape).astype(np.int8)
        else:
            found[value.name] = rng.normal(0, 0.02 if "_scale_" in value.name else 1, shape).astype(np.float32)
    return found


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


def measure(bundle: Bundle, machine: dict[str, float], threads: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each precision and number of rows, against what the machine gives."""
    precisions = [name for name in WEIGHT_BYTES if name in bundle.variants]
    turns = {(name, rows): Step(bundle, name, rows, threads) for name in precisions for rows in ROWS}
    best = best_of(turns, rounds)
    parameters = step_parameters(bundle.sizes)
    found = []
    for (precision, rows), seconds in best.items():
        least = {
            "stream_ms": 1e-6 * parameters * WEIGHT_BYTES[precision] / machine["bandwidth_gb_s"],
            "multiply_ms": 1e-6 * 2 * parameters * rows / machine[f"{precision}_gop_s"],
        }
        found.append(
            {
                "name": f"{precision}, {rows} row{'s' * (rows > 1)}",
                "precision": precision,
                "rows": rows,
                "step_ms": round(1e3 * seconds, 3),
                **{name: round(value, 3) for name, value in least.items()},
                "times_limit": round(1e3 * seconds / max(least.values()), 2),
                "goal": goal_of("roofline", f"{precision}, {rows} row{'s' * (rows > 1)}"),
                "operators": operators(bundle, precision, rows, threads, rounds),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="A decoder step against memory bandwidth and arithmetic.")
    parser.add_argument("--bundle", type=Path, help="another than the random base model's")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "roofline.json")
    options = parser.parse_args()
    warn_of_few_cores(options.threads)
    if options.bundle is None:
        from bench.models.random_model import BASE, prepare

        options.bundle = prepare(BASE).bundle
    bundle, machine = read_bundle(options.bundle), limits_here(options.threads)
    rows = measure(bundle, machine, options.threads, options.rounds)
    found = {"path": kernels.path_name(), **machine, "step_parameters": step_parameters(bundle.sizes)}
    write_record(options.out, "bench.profile.roofline", rows, limits=found, threads=options.threads)
    print(", ".join(f"{name} {value}" for name, value in found.items()))
    for row in rows:
        print("{name}: {step_ms} ms, {times_limit} times the limit".format(**row) + goal_text(row["goal"]))
        print("     " + ", ".join(f"{o['operator']} {o['share']:.0%}" for o in row["operators"][:8]))


if __name__ == "__main__":
    main()
