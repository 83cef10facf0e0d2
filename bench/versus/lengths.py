"""Short and long: the engine against CTranslate2 with 8, 32, 128 and 512 tokens on both sides.

    python -m bench.versus.lengths [--seconds 300]

As `bench.versus.quick`, with as many source tokens as forced target tokens.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.report.record import RESULTS_HERE, warn_of_few_cores, write_record
from bench.versus.race import Work, against_ctranslate2, show_row

LENGTHS = (8, 32, 128, 512)
SETTINGS = (("1 request, greedy", 1, 1), ("1 request, beam 4", 1, 4), ("8 requests, greedy", 8, 1))


def works(lengths: tuple[int, ...] = LENGTHS) -> list[Work]:
    return [
        Work(name=f"{name}, {length} tokens", requests=requests, beam_size=beam, source_length=length, length=length)
        for length in lengths
        for name, requests, beam in SETTINGS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Ratios to CTranslate2 by length.")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "lengths.json")
    options = parser.parse_args()
    warn_of_few_cores(options.threads)

    _, rows, memory = against_ctranslate2(works(tuple(options.lengths)), options.threads, options.seconds)
    write_record(options.out, "bench.versus.lengths", rows, memory=memory, threads=options.threads)
    for row in rows:
        print(show_row(row))


if __name__ == "__main__":
    main()
