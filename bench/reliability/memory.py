"""The largest requests that the limits admit, all at once, under the shipped memory limit: the process stays below it.

    python -m bench.reliability.memory [--parts embedded base large]

A server is told its limit, and gets each kind of the requests of `deploy/overload.py` over 850 connections, alone and
all together, of which nobody reads an answer. The peak is the kernel's, of resident memory, from its start on. The
part `large`, a model of NLLB-600M's shape, is written first: minutes, 9 GB on disk and 16 GB of memory. Linux only.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attendant.service.settings import DEFAULT_BUNDLE
from bench.http.servers import HOST, serving
from bench.models.random_model import LARGE, Shape, prepare
from bench.report.record import RESULTS_HERE, merged, write_record
from deploy.overload import CONNECTIONS, survive

MODULE = "bench.reliability.memory"
GIB = 2**30


@dataclass(frozen=True)
class Case:
    what: str
    shape: Shape | None  # None: the embedded model
    limit: int  # bytes
    token: str = "t9 "

    @property
    def bundle(self) -> Path:
        return DEFAULT_BUNDLE if self.shape is None else prepare(self.shape).bundle


CASES = {
    "embedded": Case("the embedded model", None, GIB, token="a"),
    "base": Case("the paper's base model", Shape(), GIB),
    "large": Case("NLLB-600M's shape", LARGE, 4 * GIB),
}


def measure(name: str) -> dict[str, Any]:
    case = CASES[name]
    megabytes = case.limit // 10**6
    arguments = ["--bundle", str(case.bundle), "--memory-megabytes", str(megabytes), "--log-level", "error"]
    with serving(["-m", "attendant", "serve", *arguments]) as server:
        ready = server.memory()["resident"]
        lives, found = survive(f"http://{HOST}:{server.port}", lambda: server.process.poll() is None, case.token)
        held = server.memory() if lives else {"resident": 0, "peak": 0}
    wrong = [] if lives else [found]
    if held["peak"] > 1e6 * megabytes:
        wrong.append(f"it came to {held['peak'] / 1e6:.0f} MB")
    return {
        "name": name,
        "what": case.what,
        "limit_mb": megabytes,
        "connections": CONNECTIONS,
        "ready_mb": round(ready / 1e6),
        "peak_mb": round(held["peak"] / 1e6),
        "afterwards_mb": round(held["resident"] / 1e6),
        "found": found,
        "wrong": wrong,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--parts", nargs="+", choices=CASES, default=["embedded", "base"], help="others stay in the record"
    )
    given = parser.parse_args()
    rows = []
    for name in given.parts:
        rows.append(measure(name))
        print(json.dumps(rows[-1]), flush=True)
    path = RESULTS_HERE / "memory_limit.json"
    write_record(path, MODULE, merged(path, rows, CASES))
    sys.exit(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    main()
