"""Mutations of every kind of file that is read, to its reader: whole, or refused with an error that its caller knows.

    python -m bench.reliability.fuzz.files [--inputs 20000] [--seed 1] [--only NAME]

Each reader has a process of its own with bounded memory. Another error, a crash, a read that takes seconds, a program
that is started and a file that is written are faults; the input is kept in tests/bench/reliability/inputs, where
`make test` reads it again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from bench.http.servers import ROOT
from bench.reliability.fuzz.guard import Guard
from bench.reliability.fuzz.mutate import mutated
from bench.reliability.fuzz.reader import call, written
from bench.reliability.fuzz.readers import READERS
from bench.report.record import RESULTS_HERE, write_record

MODULE = "bench.reliability.fuzz.files"
KEPT = ROOT / "tests/bench/reliability/inputs"
MOST_SECONDS = 5.0  # of the processor for one input
HANG_SECONDS = 60  # after which its process is ended
MEMORY = 6 * 2**30  # bytes of address space
CORPUS = 300  # inputs that were read whole are kept as further seeds


def fuzz(name: str, inputs: int, seed: int, guard: Guard, directory: Path) -> list[tuple[str, bytes]]:
    """The faults, each with its input; at most a few."""
    rng, reader, faults = random.Random(f"{name} {seed}"), READERS[name], list[tuple[str, bytes]]()
    known, kinds = reader.seeds(), set[str]()
    originals = len(known)
    reader.prepare(directory)
    guard.acts, guard.directory = reader.acts, directory if reader.writes else None
    for data in known:  # what is loaded when it is first used is loaded now
        call(reader, written(reader, directory, data))
    for _ in range(inputs):
        data = mutated(rng, rng.choice(known), reader.words, known)
        path = written(reader, directory, data)
        began = time.process_time()  # a machine that is busy is no fault of a reader
        guard.on = True
        signal.alarm(HANG_SECONDS)
        error = call(reader, path)
        signal.alarm(0)
        guard.on = False
        seconds = time.process_time() - began
        fault = f"{type(error).__name__}: {error!s:.200}" if error is not None else "; ".join(guard.found)
        if not fault and seconds > MOST_SECONDS:
            fault = f"it took {seconds:.0f} s"
        guard.found.clear()
        kind = fault.split(":")[0]
        if fault and kind not in kinds:
            kinds.add(kind)
            faults.append((fault, data))
        elif not fault and error is None and rng.random() < 0.01:
            if len(known) < CORPUS:
                known.append(data)
            else:
                known[rng.randrange(originals, CORPUS)] = data
    return faults


def in_a_process(name: str, inputs: int, seed: int) -> dict[str, Any]:
    """A row of the table. The input at which the process ended, by a crash or by the alarm, is kept too."""
    count = max(1, round(inputs * READERS[name].share))
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", MODULE, "--only", name, "--inputs", str(count), "--seed", str(seed)]
        command += ["--here", directory]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode == 0:
            faults = json.loads(done.stdout.splitlines()[-1])
        else:
            ended = "it hung" if done.returncode == -signal.SIGALRM else f"it ended with {done.returncode}"
            keep(name, (Path(directory) / READERS[name].name).read_bytes())
            faults = [ended]
    seconds = time.perf_counter() - began
    return {"name": name, "inputs": count, "seconds": round(seconds, 1), "faults": len(faults), "found": faults}


def kept_name(name: str) -> str:
    """A reader's name as part of a file's."""
    return re.sub(r"[^A-Za-z0-9.]", "_", name)


def keep(name: str, data: bytes) -> None:
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"{kept_name(name)}-{hashlib.sha256(data).hexdigest()[:12]}").write_bytes(data)


def _here(name: str, inputs: int, seed: int, directory: Path) -> None:
    warnings.simplefilter("ignore")
    logging.disable()
    tempfile.tempdir = str(directory)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    faults = fuzz(name, inputs, seed, Guard(), directory)
    for fault, data in faults:
        keep(name, data)
        print(f"{name}: {fault}", file=sys.stderr)
    print(json.dumps([fault for fault, _ in faults]))


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=int, default=20_000, help="for each reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=READERS)
    parser.add_argument("--here", type=Path, metavar="DIRECTORY", help="in this process, with this directory for files")
    given = parser.parse_args()
    if given.here:
        _here(given.only, given.inputs, given.seed, given.here)
        return
    rows = [in_a_process(name, given.inputs, given.seed) for name in ([given.only] if given.only else READERS)]
    for row in rows:
        print(f"{row['name']:34}{row['inputs']:>10,} inputs{row['seconds']:>8.1f} s{row['faults']:>5} faults")
        print("".join(f"    {fault}\n" for fault in row["found"]), end="")
    if not given.only:
        write_record(RESULTS_HERE / "fuzz_files.json", MODULE, rows)
    sys.exit(any(row["faults"] for row in rows))


if __name__ == "__main__":
    main()
