"""`attendant serve` with faults at a switch: the process that `bench.reliability.chaos` breaks.

    python -m bench.reliability.chaos_server BUNDLE DIRECTORY

The file DIRECTORY/fault names what happens from then on: to the steps of the engine `raise`, `hang` (three seconds),
`nan`, `slow`; `disk`: no file of the bundle can be opened; `threads`: none starts; `clock`: the time of day jumps.
Without the file all is as ever.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from attendant.service.engine.batch.lane import Lane
from attendant.service.engine.batch.runner import Runner
from attendant.service.http import garbage
from attendant.service.http.server import Server
from attendant.service.settings import Settings

HANG_SECONDS = 3.0
SLOW_SECONDS = 0.05
DAY = 86_400.0  # seconds


def break_steps(switch: Path) -> None:
    """Lanes consult the switch before their steps, the runner after each: for `nan` all go through it, one by one."""
    step, run, compiled = Lane._step, Runner.run, Runner.steps_in_compiled_code

    def broken_step(lane: Lane, *arguments: Any) -> Any:
        fault = _fault(switch)
        if fault == "raise":
            raise RuntimeError("a step that was made to fail")
        if fault in ("hang", "slow"):
            time.sleep(HANG_SECONDS if fault == "hang" else SLOW_SECONDS)
        return step(lane, *arguments)

    def spoilt_run(runner: Runner, *arguments: Any) -> Any:
        outputs = run(runner, *arguments)
        if _fault(switch) == "nan":
            np.copyto(outputs.top_logprobs, np.nan)
        return outputs

    def in_compiled_code(runner: Runner) -> bool:
        return _fault(switch) != "nan" and bool(compiled.fget(runner))  # type: ignore[misc]

    Lane._step, Runner.run = broken_step, spoilt_run  # type: ignore[method-assign]
    Runner.steps_in_compiled_code = property(in_compiled_code)  # type: ignore[assignment,method-assign]


def break_disk(switch: Path, bundle: Path) -> None:
    """An audit hook that raises makes the call fail which it is told of."""
    inside = f"{bundle}{os.sep}"

    def opened(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith(inside) and _fault(switch) == "disk":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(arguments[0]))

    sys.addaudithook(opened)


def break_threads(switch: Path) -> None:
    start = threading.Thread.start

    def broken_start(thread: threading.Thread) -> None:
        if _fault(switch) == "threads":
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = broken_start  # type: ignore[method-assign]


def break_clock(switch: Path) -> None:
    """A day ahead in every second call."""
    now, calls = time.time, itertools.count()

    def jumping() -> float:
        return now() + DAY * (next(calls) % 2 if _fault(switch) == "clock" else 0)

    time.time, time.time_ns = jumping, lambda: int(1e9 * jumping())


def _fault(switch: Path) -> str:
    with contextlib.suppress(OSError):
        return switch.read_text().strip()
    return ""


def main() -> None:
    bundle, directory = Path(sys.argv[1]), Path(sys.argv[2])
    switch = directory / "fault"
    break_steps(switch)
    break_disk(switch, bundle)
    break_threads(switch)
    break_clock(switch)
    settings = Settings(bundle=bundle, port=0, header_seconds=2, body_seconds=2, send_seconds=2, grace_seconds=20)
    Server(settings, announce=lambda line: print(line, flush=True), settle=garbage.settle).run()


if __name__ == "__main__":
    main()
