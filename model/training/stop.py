"""SIGINT and SIGTERM during training: finish the current step, write a checkpoint, stop."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAID = "\nstopping: the step in hand is finished and a checkpoint written; Ctrl-C again stops at once\n"


class StopRequest:
    """Whether a signal has asked to stop. Before `arm`, and on a second Ctrl-C, a signal raises KeyboardInterrupt.

    torchrun passes a Ctrl-C on as SIGTERM, so only a second SIGINT is a second Ctrl-C.
    """

    def __init__(self, says: bool = True) -> None:
        self.requested = False
        self.signal = signal.SIGINT
        self._armed, self._interrupts, self._says = False, 0, says
        self._before: dict[int, Any] = {}

    def arm(self) -> None:
        self._armed = True

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # no other thread may set handlers
            heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._handle) for number in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        self._interrupts += number == signal.SIGINT
        if not self._armed or self._interrupts > 1:
            raise KeyboardInterrupt
        if self._says and not self.requested:
            os.write(2, SAID.encode())  # print is not safe in a signal handler
        self.requested = True
