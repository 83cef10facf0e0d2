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
import random
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from bench.http.servers import ROOT
from bench.reliability.fuzz.mutate import mutated
from bench.reliability.fuzz.readers import READERS, call, written
from bench.report.record import RESULTS_HERE, write_record

MODULE = "bench.reliability.fuzz.files"
KEPT = ROOT / "tests/bench/reliability/inputs"
MOST_SECONDS = 5.0  # for one input
MEMORY = 6 * 2**30  # bytes of address space
ACTS = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "subprocess.Popen",
    "os.remove",
    "os.rename",
    "os.mkdir",
    "socket.connect",
)
CORPUS = 300  # inputs that were read whole are kept as further seeds


class Guard:
    """Notes programs that are started and files that are opened for writing while an input is read."""

    def __init__(self) -> None:
        self.on, self.found = False, list[str]()
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        writes = event == "open" and isinstance(arguments[1], str) and bool(set(arguments[1]) & set("wax+"))
        if event in ACTS or writes:
            self.found.append(f"{event} {arguments[:1]!r:.100}")


def fuzz(name: str, inputs: int, seed: int, guard: Guard) -> list[tuple[str, bytes]]:
    """The faults, each with its input; at most a few."""
    rng, reader, faults = random.Random(f"{name} {seed}"), READERS[name], list[tuple[str, bytes]]()
    known, kinds = reader.seeds(), set[str]()
    originals = len(known)
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(inputs):
            data = mutated(rng, rng.choice(known), reader.words, known)
            path = written(reader, Path(directory), data)
            began, guard.on = time.perf_counter(), True
            error = call(reader, path)
            guard.on = False
            seconds = time.perf_counter() - began
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
    """A row of the table."""
    command = [sys.executable, "-m", MODULE, "--only", name, "--inputs", str(inputs), "--seed", str(seed), "--here"]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    seconds = time.perf_counter() - began
    faults = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else [f"it ended with {done.returncode}"]
    return {"name": name, "inputs": inputs, "seconds": round(seconds, 1), "faults": len(faults), "found": faults}


def _here(name: str, inputs: int, seed: int) -> None:
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    faults = fuzz(name, inputs, seed, Guard())
    for fault, data in faults:
        KEPT.mkdir(exist_ok=True)
        (KEPT / f"{name.replace(' ', '_')}-{hashlib.sha256(data).hexdigest()[:12]}").write_bytes(data)
        print(f"{name}: {fault}", file=sys.stderr)
    print(json.dumps([fault for fault, _ in faults]))


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=int, default=20_000, help="for each reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=READERS)
    parser.add_argument("--here", action="store_true", help="in this process")
    given = parser.parse_args()
    if given.here:
        _here(given.only, given.inputs, given.seed)
        return
    rows = [in_a_process(name, given.inputs, given.seed) for name in ([given.only] if given.only else READERS)]
    for row in rows:
        print(f"{row['name']:20}{row['inputs']:>10,} inputs{row['seconds']:>8.1f} s{row['faults']:>5} faults")
        print("".join(f"    {fault}\n" for fault in row["found"]), end="")
    if not given.only:
        write_record(RESULTS_HERE / "fuzz_files.json", MODULE, rows)
    sys.exit(any(row["faults"] for row in rows))


if __name__ == "__main__":
    main()
