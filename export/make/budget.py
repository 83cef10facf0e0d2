"""Seconds for what an export could do for hours with a large model, and what did not fit into them.

Seconds are the processor's, divided by its cores: a busy machine changes nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from attendant.common.cpus import allowed_cpus

SECONDS = 40.0  # in all
SEARCH, ALIGNMENT, HELD_OUT = 0.15, 0.2, 0.65  # shares of it: the slow search, choosing heads, comparing answers
SEARCHED, SEARCHED_TOKENS = "certified answers searched again", "tokens of those"
PAIRS, INPUTS = "pairs for the alignment", "held-out inputs"


@dataclass
class Budget:
    """How long each part may take, and, by what was counted, how many of how many were looked at."""

    seconds: float = SECONDS
    looked_at: dict[str, list[int]] = field(default_factory=dict)

    def note(self, what: str, done: int, whole: int) -> None:
        if done < whole:
            self.looked_at[what] = [done, whole]

    def words(self) -> list[str]:
        """A sentence for each part that was cut short."""
        return [f"{done} of {whole} {what}" for what, (done, whole) in self.looked_at.items()]


class Clock:
    """Processor seconds since it was made, divided by the cores."""

    def __init__(self) -> None:
        self._begun = time.process_time()

    def seconds(self) -> float:
        return (time.process_time() - self._begun) / allowed_cpus()
