"""What the rest of the service sees of the engine: one protocol and one description. No onnxruntime, no asyncio.

`tasks.py` has the tasks that are submitted and the results that come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from attendant.export.bundle import Sizes
from attendant.service.engine.tasks import AlignmentChoice, EventCallback, Task
from attendant.service.text.glossary import Glossary
from attendant.service.text.languages import Languages
from attendant.service.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class CertificateResult:
    """How far this machine's log-probabilities are from those that torch gave at export."""

    drift: float  # largest difference, in nats
    tolerance: float  # the largest that is accepted
    samples: int  # that were replayed


@dataclass(frozen=True, kw_only=True)
class EngineDescription:
    """What is being served, on what, and within which limits. It never changes while an engine lives."""

    model: str  # the bundle's name
    sizes: Sizes
    special_ids: Mapping[str, int]
    variants: tuple[str, ...]  # precisions that the bundle has
    produced_by: Mapping[str, str]
    max_source_length: int  # tokens, without the end token
    max_target_length: int  # tokens, with the end token
    precision: str
    provider: str  # cpu or cuda
    provider_fallback: str | None  # reason for falling back from CUDA to CPU
    kernels: str | None = None  # instruction set that the compiled kernels use; None: onnxruntime's own operators
    kernels_reason: str | None = None  # why the compiled kernels are not used, if so
    threads: int
    lanes: int
    lanes_reason: str | None = None  # why memory allows fewer lanes than the threads would, if so
    weight_bytes: int = 0  # of the weights in memory, about
    kv_cache_bytes: int = 0  # of the KV caches of all lanes, when they are full
    max_rows: int  # hypotheses in one step of a lane
    max_queue_requests: int
    max_queue_tokens: int
    certificate: CertificateResult
    languages: Languages = field(default_factory=Languages)
    glossaries: Mapping[str, Glossary] = field(default_factory=dict)  # that a request may choose, by name
    generation: Mapping[str, Any] = field(default_factory=dict)  # the bundle's own defaults for requests
    alignment: AlignmentChoice  # the default for requests
    alignment_chosen: bool = False  # it was chosen at export; else it is the mean over the last layer's heads
    examples: tuple[str, ...] = ()  # sources to try
    about: str | None = None  # what the model does, in a sentence of its bundle


class Submission(Protocol):
    """Tasks that were submitted together."""

    def cancel(self) -> None:
        """Drop the tasks that have no outcome yet; each gets CancelledError."""


class EngineInterface(Protocol):
    """Every method may be called from any thread."""

    @property
    def description(self) -> EngineDescription: ...
    @property
    def source_tokenizer(self) -> Tokenizer: ...
    @property
    def target_tokenizer(self) -> Tokenizer: ...

    def submit(
        self, tasks: Sequence[Task], on_event: EventCallback, deadline: float | None = None, client: str | None = None
    ) -> Submission:
        """Queue all of the tasks; or none, and raise InvalidFieldError, QueueFullError or NotReadyError.

        `on_event` gets one Finished for each task, in an engine thread or in one that submits or cancels.
        `deadline` is on the clock of time.monotonic(). `client` names whoever asked, with whom others share the rows
        fairly; None: nobody knows, and the request is taken for a client of its own.
        """

    def count_waiting(self) -> int:
        """Tasks in the queue."""

    def count_waiting_tokens(self) -> int:
        """The sum of their token budgets."""

    def count_running(self) -> int:
        """Tasks in the lanes."""

    def count_cached_bytes(self) -> int:
        """Approximate memory of the cached answers."""

    def start(self) -> None:
        """Begin to decode."""

    def close(self, grace: float = 0.0) -> None:
        """Accept nothing more, finish what was accepted within `grace` seconds, and fail the rest."""


class WrappedEngine:
    """Base of engines that wrap another one, which they own, and change only some of its methods."""

    def __init__(self, engine: EngineInterface) -> None:
        self._engine = engine

    @property
    def description(self) -> EngineDescription:
        return self._engine.description

    @property
    def source_tokenizer(self) -> Tokenizer:
        return self._engine.source_tokenizer

    @property
    def target_tokenizer(self) -> Tokenizer:
        return self._engine.target_tokenizer

    def count_waiting(self) -> int:
        return self._engine.count_waiting()

    def count_waiting_tokens(self) -> int:
        return self._engine.count_waiting_tokens()

    def count_running(self) -> int:
        return self._engine.count_running()

    def count_cached_bytes(self) -> int:
        return self._engine.count_cached_bytes()

    def submit(
        self, tasks: Sequence[Task], on_event: EventCallback, deadline: float | None = None, client: str | None = None
    ) -> Submission:
        return self._engine.submit(tasks, on_event, deadline, client)

    def start(self) -> None:
        self._engine.start()

    def close(self, grace: float = 0.0) -> None:
        self._engine.close(grace)
