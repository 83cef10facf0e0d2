"""What the engine holds in memory: each variant against its parameters, and the same after thousands of requests.

    python -m bench.profile.memory [--bundle DIR] [--requests 10000] --out FILE

A process of its own loads each variant. The soak asks for lengths, beams and options at random, from a fixed seed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from attendant.export.bundle import read_bundle
from attendant.service.settings import DEFAULT_BUNDLE
from bench.report.record import facts, write_json

AT_ONCE = 64


def resident() -> float:
    """MB that this process holds now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def load(bundle: Path, precision: str, requests: int) -> dict[str, Any]:
    """In a process of its own: before, loaded, and after so many requests."""
    from attendant.service.engine.engine import Engine, EngineSettings

    before = resident()
    engine = Engine(read_bundle(bundle), EngineSettings(precision=precision, max_queue_tokens=10**9))
    found: dict[str, Any] = {"before": before, "loaded": resident(), "after": {}}
    rng = np.random.default_rng(0)
    done = 0
    while done < requests:
        engine.run([task(engine, rng) for _ in range(AT_ONCE)])
        done += AT_ONCE
        if done % (requests // 10 // AT_ONCE * AT_ONCE or AT_ONCE) == 0:
            found["after"][done] = resident()
    return found


def task(engine: Any, rng: np.random.Generator) -> Any:
    from attendant.service.engine.tasks import Generate, NextToken, Options

    sizes, limits = engine.bundle.sizes, engine.bundle.limits
    source = tuple(rng.integers(4, sizes.source_vocab, rng.integers(1, min(40, limits["max_source_length"]))).tolist())
    if rng.random() < 0.1:
        return NextToken(source=source)
    length = int(rng.integers(2, min(40, limits["max_target_length"])))
    if rng.random() < 0.2:
        options = Options(max_length=length, temperature=1.0, num_hypotheses=int(rng.integers(1, 4)))
    else:
        options = Options(max_length=length, beam_size=int(rng.choice([1, 1, 2, 4, 8])))
    return Generate(source=source, options=options)


def main() -> None:
    parser = argparse.ArgumentParser(description="Resident memory of the engine.")
    parser.add_argument("--bundle", type=Path, default=DEFAULT_BUNDLE)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--precision", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.precision:
        print(json.dumps(load(options.bundle, options.precision, options.requests)))
        return
    rows = []
    for name, variant in read_bundle(options.bundle).variants.items():
        command = [sys.executable, "-m", "bench.profile.memory", "--bundle", str(options.bundle), "--precision", name]
        command += ["--requests", str(options.requests)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        weights = (variant.graphs["step"].parent / "weights.bin").stat().st_size / 1e6
        rows.append({"variant": name, "weights_mb": weights, **found})
        after = ", ".join(f"{value:.0f}" for value in found["after"].values())
        print(
            f"{name}: weights {weights:.1f} MB; process {found['before']:.0f} MB, loaded {found['loaded']:.0f} MB; "
            f"after each tenth of {options.requests:,} requests {after} MB"
        )
    if options.out:
        write_json(options.out, {**facts("bench.profile.memory"), "requests": options.requests, "variants": rows})


if __name__ == "__main__":
    main()
