"""Which matrix product onnxruntime's CPU provider does fastest, and what each costs in accuracy.

    python -m bench.profile.kernels --out FILE.json

A stack of matrices of the base model's feed-forward, 512 x 2048 and back, 25 million parameters in all, one after the
other, for several numbers of rows. The kinds take turns; the best turn of each counts. `error` is the largest distance
from f32 over the largest f32 value; `batch_exact` says whether a row gets the same bits alone and among 64.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from attendant.export.graphs.builder import Array, GraphBuilder
from attendant.export.graphs.packing import quantize_columns
from bench.report.machine import machine_facts

CONTRIB = "com.microsoft"  # onnxruntime's own operators
NARROW, WIDE, PAIRS = 512, 2048, 12
ROWS = (1, 4, 16, 32, 64)
TURNS = 15
Multiply = Callable[[GraphBuilder, str, str, Array, float], str]  # graph, input, name, weight, largest input -> output


def f32(g: GraphBuilder, x: str, name: str, weight: Array, largest: float) -> str:
    return str(g.op("MatMul", x, g.weight(name, weight)))


def dynamic(g: GraphBuilder, x: str, name: str, weight: Array, largest: float) -> str:
    """onnxruntime's own dynamic quantization: one scale for the whole tensor."""
    levels, scale = quantize_columns(weight)
    return str(
        g.op("DynamicQuantizeMatMul", x, g.weight(name, levels), g.weight(f"{name} scale", scale), domain=CONTRIB)
    )


def per_token(g: GraphBuilder, x: str, name: str, weight: Array, largest: float) -> str:
    """One scale per row, from its largest value, by separate nodes: what the plain int8 graphs do."""
    levels, columns = quantize_columns(weight)
    top = g.op("ReduceMax", g.op("Abs", x), g.constant([-1]), keepdims=1)
    scale = g.op("Div", g.op("Max", top, g.constant(1e-8, "float")), g.constant(127.0, "float"))
    shifted = g.op("Add", g.op("Round", g.op("Div", x, scale)), g.constant(128.0, "float"))
    quantized = g.op("Cast", shifted, to=2)  # uint8
    zero = g.constant(128, "uint8")
    sums = g.cast(g.op("MatMulInteger", quantized, g.weight(name, levels), zero), "float32")
    return str(g.op("Mul", g.op("Mul", sums, scale), g.weight(f"{name} scale", columns)))


def calibrated(g: GraphBuilder, x: str, name: str, weight: Array, largest: float) -> str:
    """A scale fixed beforehand, and one fused product."""
    return _fused(g, x, name, *quantize_columns(weight), largest)


def calibrated_eight_bits(g: GraphBuilder, x: str, name: str, weight: Array, largest: float) -> str:
    """The same with weights in all 8 bits."""
    columns = np.abs(weight).max(axis=0) / np.float32(127)
    return _fused(g, x, name, np.rint(weight / columns).astype(np.int8), columns, largest)


def _fused(g: GraphBuilder, x: str, name: str, levels: Array, columns: Array, largest: float) -> str:
    scale, zero = g.constant(largest / 127, "float"), g.constant(128, "uint8")
    inputs = (g.op("QuantizeLinear", x, scale, zero), g.weight(name, levels), scale, g.weight(f"{name} scale", columns))
    return str(g.op("MatMulIntegerToFloat", *inputs, zero, domain=CONTRIB))


def calibrated_standard(g: GraphBuilder, x: str, name: str, weight: Array, largest: float) -> str:
    """The calibrated scale in standard operators alone."""
    levels, columns = quantize_columns(weight)
    scale, zero = g.constant(largest / 127, "float"), g.constant(128, "uint8")
    product = g.op("MatMulInteger", g.op("QuantizeLinear", x, scale, zero), g.weight(name, levels), zero)
    return str(g.op("Mul", g.cast(product, "float32"), g.weight(f"{name} scale", columns * np.float32(largest / 127))))


KINDS: dict[str, Multiply] = {
    "f32 MatMul": f32,
    "int8 dynamic, a scale per tensor": dynamic,
    "int8, a scale per token, by hand": per_token,
    "int8 calibrated, fused, 7-bit weights": calibrated,
    "int8 calibrated, fused, 8-bit weights": calibrated_eight_bits,
    "int8 calibrated, standard operators": calibrated_standard,
}


def stack(multiply: Multiply, weights: list[Array], largest: list[float]) -> ort.InferenceSession:
    g = GraphBuilder("stack")
    x = g.input("x", "float32", ["rows", NARROW])
    for i, (weight, top) in enumerate(zip(weights, largest, strict=True)):
        x = multiply(g, x, f"w{i}", weight, top)
    g.output(x, "y", "float32", ["rows", NARROW])
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(g.build().SerializeToString(), options, providers=["CPUExecutionProvider"])


def measure() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    shapes = [(NARROW, WIDE), (WIDE, NARROW)] * PAIRS
    weights = [rng.normal(size=shape, scale=shape[0] ** -0.5).astype(np.float32) for shape in shapes]
    x = rng.normal(size=(max(ROWS), NARROW)).astype(np.float32)
    largest, value = [], x
    for weight in weights:
        largest.append(float(np.abs(value).max()))
        value = value @ weight
    sessions = {name: stack(multiply, weights, largest) for name, multiply in KINDS.items()}
    exact = sessions["f32 MatMul"].run(None, {"x": x})[0]
    best = {name: dict.fromkeys(ROWS, float("inf")) for name in KINDS}
    for _ in range(TURNS):
        for rows in ROWS:
            for name, session in sessions.items():
                started = time.perf_counter()
                session.run(None, {"x": x[:rows]})
                best[name][rows] = min(best[name][rows], time.perf_counter() - started)
    results = []
    for name, session in sessions.items():
        together = session.run(None, {"x": x})[0]
        alone = [session.run(None, {"x": x[i : i + 1]})[0][0] for i in range(len(x))]
        results.append(
            {
                "kind": name,
                "milliseconds": {str(rows): round(1e3 * seconds, 2) for rows, seconds in best[name].items()},
                "gops_at_64_rows": round(2 * 64 * sum(w.size for w in weights) / best[name][64] / 1e9),
                "error": round(float(np.abs(together - exact).max() / np.abs(exact).max()), 4),
                "batch_exact": all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True)),
            }
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="Matrix products on onnxruntime's CPU provider.")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    results = measure()
    print(f"{'':<40}" + "".join(f"{rows:>8} rows" for rows in ROWS) + f"{'GOP/s':>8}{'error':>9}  same bits in a batch")
    for row in results:
        times = "".join(f"{milliseconds:>10.2f} ms" for milliseconds in row["milliseconds"].values())
        print(f"{row['kind']:<40}{times}{row['gops_at_64_rows']:>8}{row['error']:>9.4f}  {row['batch_exact']}")
    command = shlex.join(["python", "-m", "bench.profile.kernels", *sys.argv[1:]])
    report = {"kinds": results, "onnxruntime": ort.__version__, "machine": machine_facts(), "command": command}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
