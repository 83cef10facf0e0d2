"""Progress of long work: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10.0
# tqdm's own formats, but always with pairs/s, never its s/pairs.
COUNTER = "{desc}: {n_fmt}{unit} [{elapsed}, {rate_noinv_fmt}{postfix}]"
BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{unit} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"


class Count:
    """Counts items done, of a total that may be unknown: lines encoded, sources decoded."""

    def __init__(self, what: str, unit: str, total: int | None = None, done: int = 0, shows: bool = True) -> None:
        self._what, self._unit, self._total, self._done, self._shows = what, unit, total, done, shows
        self._begun = self._last_line = time.monotonic()
        self._done_before = done
        on_terminal = shows and sys.stderr.isatty()
        self._bar = (
            tqdm(
                desc=what,
                total=total,
                initial=done,
                unit=f" {unit}",
                bar_format=BAR if total is not None else COUNTER,
                dynamic_ncols=True,
                leave=False,
            )
            if on_terminal
            else None
        )

    def add(self, number: int, figures: str = "") -> None:
        """Count `number` more items as done; `figures` is a text to show beside them."""
        self._done += number
        if self._bar is not None:
            self._bar.set_postfix_str(figures, refresh=False)
            self._bar.update(number)
        elif self._shows and time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            print(", ".join(filter(None, [self._so_far(), figures, self._time_left()])), flush=True)

    def say(self, line: str) -> None:
        if self._bar is not None:
            self._bar.write(line)
        elif self._shows:
            print(line, flush=True)

    def seconds(self) -> float:
        return max(time.monotonic() - self._begun, 1e-9)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def _so_far(self) -> str:
        of = f" of {self._total:,}" if self._total is not None else ""
        return f"{self._what}: {self._done:,}{of} {self._unit}"

    def _time_left(self) -> str:
        if self._total is None:
            return ""
        seconds = self.seconds() / (self._done - self._done_before) * (self._total - self._done)
        return f"{int(seconds // 3600)}:{int(seconds // 60 % 60):02d}:{int(seconds % 60):02d} left"


class TrainingProgress(Count):
    """Steps done, with the loss and the speed."""

    def __init__(self, steps: int, done: int = 0, shows: bool = True) -> None:
        super().__init__("training", "steps", steps, done, shows)
        self._tokens = 0
        self._loss: float | None = None

    def advance(self, loss: float, tokens: int) -> None:
        """One step more, with its loss per token and its number of target tokens."""
        self._tokens += tokens
        self._loss = loss if self._loss is None else 0.95 * self._loss + 0.05 * loss
        self.add(1, f"loss {self._loss:.4f}, {self._tokens / self.seconds():,.0f} tokens/s")
