"""Commands of `attendant` as processes of their own, which end with their parent's signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from attendant.hub.errors import ChildFailedError, HubError, InterruptedPullError

PATIENCE = 5.0  # seconds, for a child to end by itself after Ctrl-C, which it gets too
PASSED_ON = ("SIGTERM", "SIGHUP")


def run_command(arguments: list[str], lock: int | None, say: Callable[[str], None]) -> None:
    """Run a command; `say` gets its lines. ChildFailedError if it fails, after it has said why on standard error.

    It holds the lock too, so that what it writes is its own even if this process is killed.
    """
    command = [sys.executable, "-m", "attendant", *arguments]
    descriptors = () if lock is None else (lock,)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", pass_fds=descriptors)
    with process, passing_signals(process) as received:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                say(line.rstrip("\n"))
            code = process.wait()
        except KeyboardInterrupt:
            _end(process)
            raise
    if received:
        raise InterruptedPullError("interrupted; what was downloaded stays, and the next start goes on.", received[0])
    if code < 0:
        hint = "; there may be too little memory" if -code == signal.SIGKILL else ""
        raise HubError(f"attendant {arguments[0]} was ended by {signal.Signals(-code).name}{hint}.")
    if code:
        raise ChildFailedError(f"attendant {arguments[0]} ended with exit code {code}.")


def _end(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()


@contextmanager
def passing_signals(process: subprocess.Popen[str]) -> Iterator[list[int]]:
    """Signals that end a process reach the child while it runs; yields those that came."""
    received: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        received.append(number)
        with suppress(ProcessLookupError):
            process.send_signal(number)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    numbers = [getattr(signal, name) for name in PASSED_ON if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in numbers:
            if before[number] is not signal.SIG_IGN:
                signal.signal(number, pass_on)
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
