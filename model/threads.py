"""The number of threads to compute with: as requested, else measured, adding threads while that is faster.

A model too small to be worth the synchronization of two threads is faster on one. The number can change the last bits
of a sum, so a run keeps the number that it began with.
"""

from __future__ import annotations

import contextlib
import os
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator

from attendant.model.errors import ConfigError

PAYS = 0.95  # more threads must take at most this fraction of the time that fewer took
LONG = 0.5  # seconds: a run that takes longer is not repeated
RUNS = 3  # measurements, of which the shortest counts


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
    """The number of processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def seconds_of(work: Callable[[], object]) -> float:
    """Seconds of the shortest of RUNS runs, or of the first if that takes longer than LONG."""
    shortest = float("inf")
    for _ in range(RUNS):
        begun = time.perf_counter()
        work()
        shortest = min(shortest, time.perf_counter() - begun)
        if shortest > LONG:
            break
    return shortest


def fastest(seconds_with: Callable[[int], float], most: int) -> tuple[int, float]:
    """Try 1, 2, 4, ... up to `most` threads while more are faster; returns the best number and its seconds."""
    best, seconds = 1, seconds_with(1)
    for number in sorted({min(2**power, most) for power in range(1, most.bit_length() + 1)} - {1}):
        found = seconds_with(number)
        if found > PAYS * seconds:
            break
        best, seconds = number, found
    return best, seconds


@contextlib.contextmanager
def torch_threads(number: int | None, work: Callable[[], object]) -> Iterator[None]:
    """Inside the context, torch uses `number` threads, or for 0 as many as run `work` fastest; None changes nothing."""
    import torch

    before = torch.get_num_threads()
    try:
        if number is not None:
            set_torch_threads(number, work)
        yield
    finally:
        torch.set_num_threads(before)


def set_torch_threads(number: int, work: Callable[[], object]) -> tuple[int, float]:
    """Let torch use `number` threads, or for 0 as many as run `work` fastest; returns them and `work`'s seconds."""
    import torch

    def seconds_with(threads: int) -> float:
        torch.set_num_threads(threads)
        return seconds_of(work)

    found = (number, seconds_with(number)) if number else fastest(seconds_with, torch.get_num_threads())
    torch.set_num_threads(found[0])
    return found
