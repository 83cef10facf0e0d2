"""A command as a process of its own: its seconds, and the most memory that it held.

It is started by a small process, since the peak that the system reports of a child counts what its parent held when it
was started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STARTER = """
import json, os, subprocess, sys, time
started = time.monotonic()
child = subprocess.Popen(sys.argv[2:])
_, status, usage = os.wait4(child.pid, 0)
child.returncode = os.waitstatus_to_exitcode(status)
found = {
    "code": child.returncode,
    "seconds": time.monotonic() - started,
    "processor_seconds": usage.ru_utime + usage.ru_stime,
    "peak": usage.ru_maxrss * 1024,
}
open(sys.argv[1], "w").write(json.dumps(found))
"""


class ChildError(Exception):
    """The command failed; it has said why."""


@dataclass(frozen=True)
class Measured:
    seconds: float
    processor_seconds: float
    peak: int  # bytes
    code: int = 0  # with which it ended


def measured(arguments: Sequence[str], root: Path | None = None, may_refuse: bool = False) -> Measured:
    """`python ARGUMENTS`, run to its end in `root`; ChildError if it fails, but for a refusal (1) that is expected."""
    descriptor, path = tempfile.mkstemp()
    os.close(descriptor)
    try:
        command = [sys.executable, "-c", STARTER, path, sys.executable, *arguments]
        subprocess.run(command, cwd=root, check=True)
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    finally:
        Path(path).unlink()
    if (code := found["code"]) and not (may_refuse and code == 1):
        raise ChildError(f"`python {' '.join(arguments)}` ended with code {code}; see its words above.")
    return Measured(**found)
