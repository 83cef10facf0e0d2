"""What Triton's clients ask of a model's inferences: how many there were over /v2, and where their time went."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from attendant.service.engine.tasks import Generated
from attendant.service.requests.content import Json

DURATIONS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
NANOSECONDS = 10**9


@dataclass
class ModelStatistics:
    """Since the start of the process."""

    last_inference: int = 0  # milliseconds since 1970
    inferences: int = 0  # texts
    executions: int = 0  # requests
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DURATIONS, 0))
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(DURATIONS, 0.0))

    def add(self, name: str, seconds: float) -> None:
        self.counts[name] += 1
        self.seconds[name] += seconds

    def content(self) -> Json:
        return {name: {"count": self.counts[name], "ns": round(self.seconds[name] * NANOSECONDS)} for name in DURATIONS}


class Statistics:
    """Of every model that was asked over /v2."""

    def __init__(self) -> None:
        self._models: dict[str, ModelStatistics] = {}

    def of(self, model: str) -> ModelStatistics:
        """`model` is the name of one that exists."""
        return self._models.setdefault(model, ModelStatistics())

    def failed(self, model: str, seconds: float) -> None:
        self.of(model).add("fail", seconds)

    def succeeded(self, model: str, seconds: float, answer_seconds: float, results: Sequence[Generated]) -> None:
        found = self.of(model)
        found.last_inference = int(time.time() * 1000)
        found.executions += 1
        found.inferences += len(results)
        found.add("success", seconds)
        found.add("queue", max(result.timing.queue for result in results))
        found.add("compute_input", max(result.timing.encode for result in results))
        found.add("compute_infer", max(result.timing.decode for result in results))
        found.add("compute_output", answer_seconds)
