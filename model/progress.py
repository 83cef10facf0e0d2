"""How far training is: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    def __init__(self, steps: int, done: int = 0, shows: bool = True) -> None:
        self._steps, self._done, self._shows = steps, done, shows
        self._begun = self._last_line = time.monotonic()
        self._done_before, self._tokens = done, 0
        self._loss: float | None = None
        self._bar = (
            tqdm(total=steps, initial=done, unit="step", dynamic_ncols=True) if shows and _on_terminal() else None
        )

    def advance(self, loss: float, tokens: int) -> None:
        """One step more, with its loss per token and its number of target tokens."""
        self._done += 1
        self._tokens += tokens
        self._loss = loss if self._loss is None else 0.95 * self._loss + 0.05 * loss
        if self._bar is not None:
            self._bar.set_postfix_str(self._figures(), refresh=False)
            self._bar.update()
        elif self._shows and time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            print(f"step {self._done}/{self._steps}, {self._figures()}, {self._time_left()} left", flush=True)

    def say(self, line: str) -> None:
        if self._bar is not None:
            self._bar.write(line)
        elif self._shows:
            print(line, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def _figures(self) -> str:
        seconds = max(time.monotonic() - self._begun, 1e-9)
        return f"loss {self._loss:.4f}, {self._tokens / seconds:,.0f} tokens/s"

    def _time_left(self) -> str:
        seconds = (time.monotonic() - self._begun) / (self._done - self._done_before) * (self._steps - self._done)
        return f"{int(seconds // 3600)}:{int(seconds // 60 % 60):02d}:{int(seconds % 60):02d}"


def _on_terminal() -> bool:
    return sys.stderr.isatty()
