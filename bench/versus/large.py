"""A model of NLLB-600M's shape against CTranslate2 on the same weights, and both sides' memory.

    python -m bench.versus.large [--seconds 60]

Random weights; 12 + 12 layers, d_model 1,024, d_ff 4,096, 16 heads, a vocabulary of 256,206; 2 threads, source 20
tokens, 24 forced target tokens. First both sides answer every work in f32 with 8 target tokens, and must give the same.
Longer answers are not compared: of 24 tokens, one with beam 4 differed, from its twelfth token on, and it is not shown
that this is rounding alone. `--length 8` times no more than is compared. Then our int8 takes turns with CTranslate2's
four ways (f32 and int8, one worker with all threads and two that share them), of which the best is compared; our f32 is
not timed, so that all of them fit in 16 GB of memory. The peak of memory is that of a process after all works, in int8,
ours with two lanes. The model is written once: minutes, and 9 GB on disk.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.models.random_model import LARGE, Prepared, Shape, prepare
from bench.report.goals import goal_of
from bench.report.record import RESULTS_HERE, warn_of_few_cores, write_record
from bench.versus.engines import SOURCE_LENGTH, TARGET_LENGTH
from bench.versus.quick import memory_row
from bench.versus.race import KINDS, UnequalError, Work, answer_once, race, show_row
from bench.versus.worker import Worker

WORKS = (("1 request, greedy", 1, 1), ("1 request, beam 4", 1, 4), ("8 requests, beam 4", 8, 4))
PEERS = KINDS[1:]
MEMORY = "peak memory, int8, two lanes"
CHECKED = 8  # target tokens that are compared in f32


def works(length: int = TARGET_LENGTH) -> list[Work]:
    return [
        Work(name=name, requests=requests, beam_size=beam_size, length=length, goal=goal_of("large", name))
        for name, requests, beam_size in WORKS
    ]


def measure(prepared: Prepared, wanted: Sequence[Work], threads: int, seconds: float) -> list[dict[str, Any]]:
    """A row for each work, and one for the memory; UnequalError if the tokens in f32 differ."""
    from bench.models.peers import prepare_peer

    models = prepare_peer(prepared.run, prepared.directory / "ctranslate2")
    *rows, held = race_int8(prepared.bundle, models, prepared.shape.vocabulary, wanted, threads, seconds)
    return [*rows, {**held, "goal": goal_of("large", MEMORY)}]


def race_int8(
    bundle: Path, models: dict[str, Path], vocabulary: int, wanted: Sequence[Work], threads: int, seconds: float
) -> list[dict[str, Any]]:
    """Our int8 against CTranslate2's four ways: a row for each work, and one for the memory."""
    workers = list[Worker]()
    try:
        workers.append(Worker(PEERS[0], models["fp32"], "fp32", threads))
        with Worker("ours", bundle, "fp32", threads) as ours:
            short = [replace(work, length=min(CHECKED, work.length or CHECKED)) for work in wanted]
            answer_once([ours, *workers], {work: work.sources(vocabulary) for work in short})
            print(f"compared in f32: {short[0].length} target tokens; our f32 is not timed, int8 is not compared")
        workers.append(Worker(PEERS[1], models["fp32"], "fp32", threads))
        workers += [Worker(kind, models["int8"], "int8", threads) for kind in PEERS]
        workers.append(Worker("ours", bundle, "int8", threads))
        rows = race(workers, wanted, vocabulary, seconds)
        memory = {(worker.kind, worker.precision): worker.memory() for worker in workers}
    finally:
        for worker in workers:
            worker.close()
    return [*rows, memory_row(MEMORY, memory["ours", "int8"], memory[PEERS[0], "int8"])]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A model of NLLB-600M's shape against CTranslate2.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long turns are taken; three of each at least")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--length", type=int, default=TARGET_LENGTH, help="target tokens")
    for name in ("vocabulary", "d_model", "d_ff", "heads", "layers"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(LARGE, name))
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "large.json")
    return parser.parse_args()


def main() -> None:
    options = parse()
    warn_of_few_cores(options.threads)
    shape = Shape(
        vocabulary=options.vocabulary,
        d_model=options.d_model,
        d_ff=options.d_ff,
        heads=options.heads,
        layers=options.layers,
    )
    try:
        rows = measure(prepare(shape), works(options.length), options.threads, options.seconds)
    except UnequalError as error:
        raise SystemExit(str(error)) from None
    sizes = {"source_length": SOURCE_LENGTH, "target_length": options.length, "checked": min(CHECKED, options.length)}
    write_record(options.out, "bench.versus.large", rows, shape=vars(shape), threads=options.threads, **sizes)
    for row in rows[:-1]:
        print(show_row(row))
    print("{name:<32} {ratio:>5.2f}x (goal {goal:g})    ours {ours} MB, ctranslate2 {theirs} MB".format(**rows[-1]))


if __name__ == "__main__":
    main()
