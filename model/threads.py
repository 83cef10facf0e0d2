"""How many threads to compute with: as many as were asked for, else as many as are measured to pay.

A model too small to be worth the synchronization of two threads is faster on one. The number can change the last bits
of a sum, so a run keeps the number that it began with.
"""

from __future__ import annotations

import contextlib
import os
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator

from model.errors import ConfigError

PAYS = 0.95  # of the time with half as many: what more threads must reach
LONG = 0.5  # seconds, from which on one measurement is enough
RUNS = 3  # of which the shortest counts


def add_flag(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--threads", type=int, metavar="N", help="processor threads (default: measured for the model at hand)"
    )


def asked_for(threads: int | None) -> int:
    """--threads, else OMP_NUM_THREADS where it is one number; 0: neither is given."""
    if threads is not None:
        if threads < 1:
            raise ConfigError(f"--threads takes a whole number from 1, not {threads}.")
        return threads
    named = os.environ.get("OMP_NUM_THREADS", "")
    return int(named) if named.isdecimal() else 0


def processors() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def seconds_of(work: Callable[[], object]) -> float:
    """The shortest of a few runs; of a long one, one is enough once it is warm."""
    shortest = float("inf")
    for _ in range(RUNS):
        begun = time.perf_counter()
        work()
        shortest = min(shortest, time.perf_counter() - begun)
        if shortest > LONG:
            break
    return shortest


def fastest(seconds_with: Callable[[int], float], most: int) -> tuple[int, float]:
    """1, 2, 4 ... threads, for as long as doubling them pays: their number, and the seconds with so many."""
    best, seconds = 1, seconds_with(1)
    for number in sorted({min(2**power, most) for power in range(1, most.bit_length() + 1)} - {1}):
        found = seconds_with(number)
        if found > PAYS * seconds:
            break
        best, seconds = number, found
    return best, seconds


@contextlib.contextmanager
def torch_threads(number: int | None, work: Callable[[], object]) -> Iterator[None]:
    """Compute with so many threads inside, or with as many as `work` is fastest with (0); None changes nothing."""
    import torch

    before = torch.get_num_threads()
    try:
        if number is not None:
            set_torch_threads(number, work)
        yield
    finally:
        torch.set_num_threads(before)


def set_torch_threads(number: int, work: Callable[[], object]) -> tuple[int, float]:
    """Let torch compute with so many threads, or with as many as `work` is fastest with (0); and its seconds then."""
    import torch

    def seconds_with(threads: int) -> float:
        torch.set_num_threads(threads)
        return seconds_of(work)

    found = (number, seconds_with(number)) if number else fastest(seconds_with, torch.get_num_threads())
    torch.set_num_threads(found[0])
    return found
