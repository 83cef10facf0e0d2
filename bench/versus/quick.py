"""The headline: how many times faster than CTranslate2 the engine is, on the same weights, with each goal beside it.

    python -m bench.versus.quick [--seconds 100]

The paper's base model with random weights, 2 threads, source 20 tokens, 24 forced target tokens. A ratio is the time of
the best of CTranslate2's four ways (f32 and int8, one worker with all threads and two that share them) over that of our
best precision. Under four minutes once the model has been made.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from attendant.export.bundle import read_bundle
from bench.report.goals import BASE_WORKS, goal_of
from bench.report.record import RESULTS_HERE, facts, warn_of_few_cores, write_json
from bench.versus.race import Work, against_ctranslate2, show_row
from bench.versus.worker import Worker

WORKS = tuple(
    Work(name=name, requests=requests, beam_size=beam_size, goal=goal_of("quick", name))
    for name, (requests, beam_size) in zip(BASE_WORKS, ((1, 1), (1, 4), (32, 1), (16, 4)), strict=True)
)


def main() -> None:
    parser = argparse.ArgumentParser(description="The four ratios to CTranslate2, and their goals.")
    parser.add_argument("--seconds", type=float, default=100.0, help="how long turns are taken")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "quick.json")
    options = parser.parse_args()
    warn_of_few_cores(options.threads)

    bundle, rows, memory = against_ctranslate2(WORKS, options.threads, options.seconds)
    one_lane = memory_of_one_lane(bundle, options.threads)
    about = {**facts("bench.versus.quick"), "threads": options.threads}
    held = [
        memory_row("peak memory, int8", memory["ours int8"], memory["ctranslate2 int8"]),
        memory_row("the same with --lanes 1", one_lane, memory["ctranslate2 int8"]),
    ]
    write_json(options.out, [{**row, **about} for row in [*rows, *held]])
    for row in rows:
        print(show_row(row))
    for row in held:
        print("{name:<32} {ratio:>5.2f}x (goal {goal:g})    ours {ours} MB, ctranslate2 {theirs} MB".format(**row))


def memory_of_one_lane(bundle: Path, threads: int) -> dict[str, int]:
    """After all works, for who has less memory than load."""
    vocabulary = read_bundle(bundle).sizes.source_vocab
    with Worker("ours_one_lane", bundle, "int8", threads) as worker:
        for work in WORKS:
            worker.answer(work.sources(vocabulary), work.beam_size, work.length)
        return worker.memory()


def memory_row(name: str, mine: dict[str, int], others: dict[str, int]) -> dict[str, Any]:
    """The peak of resident memory, theirs over ours."""
    ours, theirs = (round(memory["peak"] / 1e6, 1) for memory in (mine, others))
    return {"name": name, "ours": ours, "theirs": theirs, "ratio": round(theirs / ours, 2), "goal": 1.0, "unit": "MB"}


if __name__ == "__main__":
    main()
