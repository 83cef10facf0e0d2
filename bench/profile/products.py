"""int8 products on our own kernels at the sizes of decoding, beside the machine's limits by the same kernels.

    python -m bench.profile.products [--path NAME] [--out FILE.json]

Compiles kernels/bench/products.cc (a C++ compiler is needed) and runs it for each instruction set here: GOP/s
of one core, the share of the peak, and GB/s where one row makes the memory the limit. Best of several turns.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from attendant import kernels
from attendant.kernels.compile import HERE, SOURCES, compile_objects, find_compiler, run
from bench.report.machine import machine_facts

Row = dict[str, Any]


def build(directory: Path) -> Path:
    compiler = find_compiler()
    if not compiler:
        raise SystemExit("A C++ compiler is needed.")
    objects = compile_objects(compiler, platform.machine(), directory, more={HERE / "bench" / "products.cc": ()})
    needed = [str(path) for path in objects if path.stem.startswith("path") or path.stem == "products"]
    program = directory / "products"
    run([compiler, "-O2", f"-I{SOURCES}", "-pthread", *needed, "-o", str(program)])
    return program


def measure(program: Path, path: str, *more: str) -> list[Row]:
    done = subprocess.run([program, path, *more], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def limits(program: Path, path: str, threads: int) -> Row:
    """The most operations and bytes a second of a path's products on so many threads."""
    return next(row for row in measure(program, path, str(threads), "limits") if row["threads"] == threads)


def table(rows: list[Row]) -> str:
    """A line for each size: microseconds, GOP/s and the share of the peak, by number of rows of activations."""
    peak = next(row["peak_gops"] for row in rows if row.get("threads") == 1)
    lines = [
        f"{row['path']}, {row['threads']} threads: {row['peak_gops']:.0f} GOP/s, f32 {row['f32_peak_gops']:.0f} GOP/s, "
        f"{row['bandwidth_gbs']:.1f} GB/s"
        for row in rows
        if "threads" in row
    ]
    products = [row for row in rows if "rows" in row]
    counts = sorted({row["rows"] for row in products})
    lines += ["| k x n | " + " | ".join(f"{count} rows" for count in counts) + " |", "|---" * (len(counts) + 1) + "|"]
    for k, n in dict.fromkeys((row["k"], row["n"]) for row in products):
        cells = [row for row in products if (row["k"], row["n"]) == (k, n)]
        texts = [f"{row['us']:.1f} us, {row['gops']:.0f} ({row['gops'] / peak:.0%})" for row in cells]
        lines.append(f"| {k} x {n} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", choices=kernels.supported(), help="only this instruction set")
    parser.add_argument("--out", type=Path, help="the figures as JSON")
    options = parser.parse_args()
    names = [options.path] if options.path else [name for name in kernels.supported() if name != "portable"]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory:
        program = build(Path(directory))
        for name in names:
            rows += (found := measure(program, name))
            print(table(found), flush=True)
    if options.out:
        record = {"command": f"python -m bench.profile.products {' '.join(sys.argv[1:])}", "machine": machine_facts()}
        options.out.write_text(json.dumps({**record, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
