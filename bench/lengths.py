"""Short and long: the engine against CTranslate2 with 8, 32, 128 and 512 tokens on both sides.

    python -m bench.lengths [--seconds 300]

As `bench.quick`, with as many source tokens as forced target tokens.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.peers import prepare_peer
from bench.race import UnequalError, Work, race, show_row, start_workers
from bench.record import RESULTS, warn_of_few_cores, write_record

LENGTHS = (8, 32, 128, 512)
SETTINGS = (("1 request, greedy", 1, 1), ("1 request, beam 4", 1, 4), ("8 requests, greedy", 8, 1))


def works(lengths: tuple[int, ...] = LENGTHS) -> list[Work]:
    return [
        Work(
            name=f"{name}, {length} tokens", requests=requests, beam_size=beam, source_length=length, length=length
        )
        for length in lengths
        for name, requests, beam in SETTINGS
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Ratios to CTranslate2 by length.")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--out", type=Path, default=RESULTS / "lengths.json")
    options = parser.parse_args()
    warn_of_few_cores(options.threads)

    from bench.random_model import BASE, prepare

    prepared = prepare(BASE)
    models = prepare_peer(prepared.run, prepared.directory / "ctranslate2")
    workers = start_workers(prepared.bundle, models, options.threads)
    try:
        rows = race(workers, works(tuple(options.lengths)), BASE.vocabulary, options.seconds)
        memory = {f"{worker.kind} {worker.precision}": worker.memory() for worker in workers}
    except UnequalError as error:
        raise SystemExit(str(error)) from None
    finally:
        for worker in workers:
            worker.close()
    write_record(options.out, "bench.lengths", rows, memory=memory, threads=options.threads)
    for row in rows:
        print(show_row(row))


if __name__ == "__main__":
    main()
