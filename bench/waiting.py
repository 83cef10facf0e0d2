"""What waiting passively and the number of threads cost or save, on an idle machine or a busy one.

    python -m bench.waiting --out bench/results/waiting.json            idle
    python -m bench.waiting --busy 1 --out bench/results/waiting_busy.json

OpenMP reads its policy when torch is loaded, so each policy with each number of threads is a process of its own. They
take turns of a few updates, one at a time, and the best turn of each counts; between turns they sleep. Batches are
random tokens, as many as the preset's batch has. Last come the graphs of the embedded bundle, decoding as `attendant
evaluate` does. `--busy N` keeps N other processes computing meanwhile.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.record import RESULTS_HERE, write_record

POLICIES: dict[str, dict[str, str]] = {
    "spinning (OpenMP's default)": {},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    **{f"a spin of {count:,}": {"GOMP_SPINCOUNT": str(count)} for count in (1_000, 5_000, 20_000)},
}
PRESETS = ("tiny", "g2p")
VOCABULARY, LENGTH = 64, 12  # tokens
SECONDS_A_TURN = 3.0
SOURCES = 512


def work(preset: str, threads: int) -> None:
    """A worker: for each line read, updates for some seconds, and padded tokens per second written."""
    import torch

    from model.config import build
    from model.loss import smoothed_cross_entropy
    from model.optim import make_optimizer
    from model.tokenizer import EOS
    from model.transformer import Transformer

    torch.set_num_threads(threads)
    model_config, train_config = build(preset, {})
    model = Transformer(dataclasses.replace(model_config, source_vocab=VOCABULARY, target_vocab=VOCABULARY)).train()
    optimizer = make_optimizer(model, train_config)
    rows = train_config.batch_tokens // (2 * LENGTH)
    source, target = (torch.randint(EOS + 1, VOCABULARY, (rows, LENGTH)) for _ in range(2))
    for _ in sys.stdin:
        updates, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < SECONDS_A_TURN or updates < 2:
            optimizer.zero_grad(set_to_none=True)
            smoothed_cross_entropy(model(source, target[:, :-1]), target[:, 1:], 0.1).div(rows * LENGTH).backward()
            optimizer.step()
            updates += 1
        print(updates * rows * 2 * LENGTH / (time.perf_counter() - begun), flush=True)


def race(turns: int, presets: list[str], most: int) -> list[dict[str, Any]]:
    rows = []
    for preset in presets:
        workers = {
            (policy, threads): _start(preset, policy, threads)
            for policy in POLICIES
            for threads in sorted({1, most})
            if threads > 1 or policy == "passive"  # one thread waits for none
        }
        rates: dict[tuple[str, int], list[float]] = {key: [] for key in workers}
        for _ in range(turns):
            for key, process in workers.items():
                rates[key].append(_turn(process))
        for process in workers.values():
            process.communicate()
        spinning = max(rates[next(iter(POLICIES)), most]) if most > 1 else max(rates["passive", 1])
        for (policy, threads), found in rates.items():
            row = {"preset": preset, "policy": policy, "threads": threads, "tokens_per_second": round(max(found))}
            row |= {"to_spinning": round(max(found) / spinning, 3), "turns": [round(rate) for rate in found]}
            rows.append(row)
            print(
                f"{preset}, {threads} threads, {policy}: {max(found):,.0f} tokens/s, {row['to_spinning']} of spinning"
            )
    return rows


def race_graphs(turns: int, most: int) -> list[dict[str, Any]]:
    """Greedy decoding of random sources by onnxruntime, whose threads spin or sleep while they wait."""
    import numpy as np

    from export.bundle import read_bundle
    from export.runner import GraphStepper, Runner
    from model.decode import decode_sources

    bundle = read_bundle(Path(__file__).parent.parent / "service" / "default_bundle")
    graphs, rng = bundle.variants["int8"].graphs, np.random.default_rng(1)
    sources = [rng.integers(4, bundle.sizes.source_vocab, rng.integers(3, 12)).tolist() for _ in range(SOURCES)]
    keys = [(spin, threads) for threads in sorted({1, most}) for spin in (True, False) if threads > 1 or not spin]
    steppers = {key: GraphStepper(Runner(graphs, bundle.sizes, threads=key[1], spin=key[0])) for key in keys}
    rates: dict[tuple[bool, int], list[float]] = {key: [] for key in keys}
    for _ in range(turns + 1):  # the first warms up
        for key, stepper in steppers.items():
            begun = time.perf_counter()
            decode_sources(stepper, sources)
            rates[key].append(SOURCES / (time.perf_counter() - begun))
    spinning = max(rates[most > 1, most])
    rows = []
    for (spin, threads), found in rates.items():
        row = {"graphs": "default bundle, int8", "spinning": spin, "threads": threads}
        row |= {"sources_per_second": round(max(found)), "to_spinning": round(max(found) / spinning, 3)}
        rows.append(row)
        print(", ".join(f"{name} {value}" for name, value in row.items()))
    return rows


def _start(preset: str, policy: str, threads: int) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))} | POLICIES[policy]
    command = [sys.executable, "-m", "bench.waiting", "--work", preset, str(threads)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _turn(process: subprocess.Popen[str]) -> float:
    assert process.stdin
    assert process.stdout
    process.stdin.write("go\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def _compute_forever() -> None:
    while True:
        sum(range(10_000))


def main() -> None:
    parser = argparse.ArgumentParser(description="Training with each waiting policy and number of threads.")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="other processes that compute meanwhile")
    parser.add_argument("--preset", nargs="+", choices=PRESETS, default=list(PRESETS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="to compare one thread with")
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "waiting.json")
    options = parser.parse_args()
    if options.work:
        work(options.work[0], int(options.work[1]))
        return
    others = [multiprocessing.Process(target=_compute_forever, daemon=True) for _ in range(options.busy)]
    for other in others:
        other.start()
    rows = race(options.turns, options.preset, options.threads) + race_graphs(options.turns, options.threads)
    write_record(options.out, "bench.waiting", rows, busy=options.busy)


if __name__ == "__main__":
    main()
