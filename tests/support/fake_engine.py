"""An engine without a model: deterministic answers from a thread of its own, with hooks to pause, fail and refuse.

Its "model" is a function from (source, prefix) to a distribution, so what it generates, scores and distributes agree.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attendant.export.bundle import Bundle, Variant
from attendant.export.signature import Sizes
from attendant.model.text.tokenizer import learn
from attendant.service.engine.explain.attention import choose, layers_of
from attendant.service.engine.interface import CertificateResult, EngineDescription
from attendant.service.engine.limits import alignment_of, languages_of
from attendant.service.engine.search.distributions import entropy_of
from attendant.service.engine.tasks import (
    Array,
    Distribution,
    EventCallback,
    Explain,
    Explained,
    Finished,
    Generate,
    Generated,
    Hypothesis,
    Ids,
    NewTokens,
    NextToken,
    Score,
    Scored,
    Task,
    Timing,
    TokenLogprobs,
)
from attendant.service.errors import CancelledError, DeadlineError, InvalidFieldError, NotReadyError, QueueFullError
from attendant.service.text.tokenizer import Tokenizer

SPECIAL = {"pad": 0, "unk": 1, "bos": 2, "eos": 3}
PHONES = ["AA", "AE", "B", "CH", "D", "EH", "F", "G", "HH", "IY", "K", "L", "M", "N", "OW", "P", "R", "S", "T", "UW"]
TIMING = Timing(0.001, 0.002, 0.003)
MAX_ROWS, MAX_QUEUE_TOKENS = 64, 200_000
POLL = 0.002  # seconds between looks at deadlines


def make_bundle(directory: Path, name: str = "fake", source: int = 16, target: int = 20) -> Bundle:
    """A bundle with real tokenizers (letters to phones) and nothing else behind it."""
    directory.mkdir(parents=True, exist_ok=True)
    learn("chars", ["abcdefghijklmnopqrstuvwxyz'é"]).save(directory / "source.json")
    learn("words", [" ".join(PHONES)]).save(directory / "target.json")
    sizes = Sizes(
        source_vocab=32,
        target_vocab=len(PHONES) + 4,
        d_model=16,
        d_ff=24,
        heads=2,
        encoder_layers=2,
        decoder_layers=2,
        max_length=64,
    )
    return Bundle(
        directory=directory,
        name=name,
        sizes=sizes,
        special_ids=SPECIAL,
        limits={"max_source_length": source, "max_target_length": target},
        tokenizers={side: directory / f"{side}.json" for side in ("source", "target")},
        variants={"fp32": Variant("fp32", {}, 1e-4, {})},
        certificate={},
        produced_by={"attendant": "test"},
    )


@dataclass(eq=False)
class FakeSubmission:
    engine: FakeEngine
    cancelled: bool = False

    def cancel(self) -> None:
        with self.engine.changed:
            self.cancelled = True
            self.engine.changed.notify_all()


@dataclass(eq=False)
class Job:
    submission: FakeSubmission
    index: int
    task: Generate | NextToken | Score
    on_event: EventCallback
    deadline: float | None
    ids: Ids
    emitted: int = 0  # tokens
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[TokenLogprobs] = field(default_factory=list)
    explain: Explain | None = None  # what the task was submitted as


class FakeEngine:
    drift = 1e-6

    def __init__(self, bundle: Bundle, max_queue_requests: int = 1024) -> None:
        self.bundle = bundle
        self.source_tokenizer = Tokenizer(bundle.tokenizers["source"], bundle.special_ids)
        self.target_tokenizer = Tokenizer(bundle.tokenizers["target"], bundle.special_ids)
        self.max_queue_requests = max_queue_requests
        self.pause_after: int | None = None  # tokens after which every task waits, until this is None again
        self.failure: Exception | None = None  # every task fails with it
        self.failures: dict[Ids, Exception] = {}  # the tasks of a source fail with it
        self.refusal: Exception | None = None  # submit raises it
        self.submitted: list[Task] = []
        self.submissions = 0
        self.clients: list[str | None] = []  # of each submission
        self._most_requests = max_queue_requests
        self.cancelled = 0  # tasks that ended by a cancelled submission
        self.changed = threading.Condition()
        self._jobs: list[Job] = []
        self._stop_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="fake-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def description(self) -> EngineDescription:
        return EngineDescription(
            model=self.bundle.name,
            sizes=self.bundle.sizes,
            special_ids=self.bundle.special_ids,
            variants=("fp32",),
            produced_by=self.bundle.produced_by,
            max_source_length=self.bundle.limits["max_source_length"],
            max_target_length=self.bundle.limits["max_target_length"],
            precision="fp32",
            provider="cpu",
            provider_fallback=None,
            threads=1,
            lanes=1,
            max_rows=MAX_ROWS,
            max_queue_requests=self.max_queue_requests,
            max_queue_tokens=MAX_QUEUE_TOKENS,
            certificate=CertificateResult(drift=self.drift, tolerance=1e-4, samples=3),
            languages=languages_of(self.bundle),
            generation=self.bundle.generation,
            alignment=alignment_of(self.bundle),
        )

    def submit(
        self, tasks: Sequence[Task], on_event: EventCallback, deadline: float | None = None, client: str | None = None
    ) -> FakeSubmission:
        with self.changed:
            self.submissions += 1
            self.clients.append(client)
            self._refuse_oversized(tasks)
            if self.refusal is not None:
                raise self.refusal
            if self._stop_at is not None:
                raise NotReadyError("the service is stopping.")
            if len(self._jobs) + len(tasks) > self.max_queue_requests:
                raise QueueFullError("the queue is full; try again in 1 s.", 1)
            submission = FakeSubmission(self)
            self.submitted += tasks
            for index, submitted in enumerate(tasks):
                task = submitted.search if isinstance(submitted, Explain) else submitted
                ids = task.prefix if isinstance(task, Generate) else ()
                job = Job(submission, index, task, on_event, deadline, ids)
                job.logprobs = self._score(task.source, ids)
                job.top_logprobs = [self._top(task, ids[:place]) for place in range(len(ids))]
                job.explain = submitted if isinstance(submitted, Explain) else None
                self._jobs.append(job)
            self.changed.notify_all()
            return submission

    def close(self, grace: float = 0.0) -> None:
        with self.changed:
            self._stop_at = time.monotonic() + grace
            self.changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def count_waiting(self) -> int:
        return 0

    def count_waiting_tokens(self) -> int:
        return 0

    def count_running(self) -> int:
        return len(self._jobs)

    def count_cached_bytes(self) -> int:
        return 0

    def resume(self) -> None:
        with self.changed:
            self.pause_after = None
            self.changed.notify_all()

    def _run(self) -> None:
        with self.changed:
            while self._jobs or self._stop_at is None:
                outcomes = [(job, self._explained(job, self._step(job))) for job in self._jobs]
                self._jobs = [job for job, outcome in outcomes if outcome is None]
                for job, outcome in outcomes:
                    if outcome is not None:
                        job.on_event(Finished(job.index, outcome))
                pause = POLL if self.pause_after is not None else 0
                if self._jobs or self._stop_at is None:
                    self.changed.wait(pause if self._jobs else None)

    def _step(self, job: Job) -> Any:
        """One token more, or the outcome."""
        if job.submission.cancelled:
            self.cancelled += 1
            return CancelledError()
        if self._stop_at is not None and time.monotonic() >= self._stop_at:
            return NotReadyError("the service is stopping.")
        if self.failure is not None or job.task.source in self.failures:
            return self.failure or self.failures[job.task.source]
        if job.deadline is not None and time.monotonic() >= job.deadline:
            return self._late(job)
        if self.pause_after is not None and len(job.ids) >= self.pause_after:
            return None
        if isinstance(job.task, NextToken):
            return self._distribution(job.task)
        if isinstance(job.task, Score):
            target = (*job.task.target, SPECIAL["eos"])
            top = tuple(self._top(job.task, target[:place]) for place in range(len(target)))
            return Scored(tuple(self._score(job.task.source, target)), TIMING, top, self._entropies(job.task, target))
        return self._extend(job, job.task)

    def _extend(self, job: Job, task: Generate) -> Generated | None:
        table = self._logprobs(task.source, job.ids, task.options.seed if task.options.samples else 0)
        best = int(table.argmax())
        job.logprobs.append(float(self._logprobs(task.source, job.ids)[best]))
        job.top_logprobs.append(self._top(task, job.ids))
        if best != SPECIAL["eos"]:
            job.ids = (*job.ids, best)
        self._emit(job, task)
        if best == SPECIAL["eos"]:
            return self._generated(job, task, "stop")
        return self._generated(job, task, "length") if len(job.ids) >= task.options.max_length else None

    def _emit(self, job: Job, task: Generate) -> None:
        if task.stream and len(job.ids) > job.emitted:
            new = slice(job.emitted, len(job.ids))
            top = tuple(job.top_logprobs[new]) if task.top_logprobs else ()
            job.on_event(NewTokens(job.index, job.ids[new], tuple(job.logprobs[new]), top))
            job.emitted = len(job.ids)

    def _late(self, job: Job) -> Any:
        if isinstance(job.task, Generate) and len(job.ids) > len(job.task.prefix):
            return self._generated(job, job.task, "deadline")
        return DeadlineError("the deadline passed before anything could be answered; raise timeout_ms.")

    def _generated(self, job: Job, task: Generate, reason: str) -> Generated:
        return Generated(tuple(self._hypotheses(job, task, reason)), TIMING, cut_short=reason == "deadline")

    def _hypotheses(self, job: Job, task: Generate, reason: str) -> Iterator[Hypothesis]:
        """The path found, then the same path with its last token replaced by ever higher ids."""
        penalty = task.options.length_penalty
        for number in range(task.options.num_hypotheses):
            ids = job.ids
            if number:
                ids = (*ids[:-1], 4 + number % len(PHONES))
            logprobs = job.logprobs if not number else self._score(task.source, (*ids, SPECIAL["eos"]))
            top = tuple(self._top(task, ids[:place]) for place in range(len(logprobs))) if task.top_logprobs else ()
            entropies = self._entropies(task, (*ids, SPECIAL["eos"])[: len(logprobs)])
            top = top or ((),) * len(entropies)
            yield Hypothesis(ids, tuple(logprobs), sum(logprobs) / len(logprobs) ** penalty, reason, top, entropies)

    def _explained(self, job: Job, outcome: Any) -> Any:
        """The result of a search with uniform attention, for a task that is to be explained."""
        if job.explain is None or not isinstance(outcome, Generated | Scored):
            return outcome
        steps = len((outcome.hypotheses[0] if isinstance(outcome, Generated) else outcome).logprobs)
        source, sizes = len(job.task.source) + 1, self.bundle.sizes
        found = []
        for kind in job.explain.attention.kinds:
            shape = {"encoder": (source, source), "decoder": (steps, steps), "cross": (steps, source)}[kind]
            weights = np.full((layers_of(kind, sizes), sizes.heads, *shape), 1 / shape[1], np.float32)
            found.append(choose(kind, weights, job.explain.attention))
        return Explained(outcome, tuple(found), (SPECIAL["bos"],), (), "fp32", 0.004)

    def _entropies(self, task: Generate | Score, target: Ids) -> tuple[float, ...]:
        if not task.record:
            return ()
        return tuple(entropy_of(self._logprobs(task.source, target[:place])) for place in range(len(target)))

    def _distribution(self, task: NextToken) -> Distribution:
        return Distribution(
            self._logprobs(task.source, task.prefix), tuple(self._score(task.source, task.prefix)), TIMING
        )

    def _score(self, source: Ids, target: Ids) -> list[float]:
        return [float(self._logprobs(source, target[:i])[token]) for i, token in enumerate(target)]

    def _top(self, task: Task, prefix: Ids) -> TokenLogprobs:
        """The most probable tokens after a prefix, as many as a task asks for."""
        count = 0 if isinstance(task, NextToken | Explain) else task.top_logprobs
        if not count:
            return ()
        logprobs = self._logprobs(task.source, prefix)
        best = np.argsort(-logprobs, kind="stable")[:count]
        return tuple((int(index), float(logprobs[index])) for index in best)

    def _refuse_oversized(self, tasks: Sequence[Task]) -> None:
        """What could not even wait alone, refused as the scheduler does."""
        if max(task.rows for task in tasks) > MAX_ROWS:
            raise InvalidFieldError(f"more than {MAX_ROWS} hypotheses at once; ask for fewer.", "beam_size")
        if len(tasks) > self._most_requests:
            raise InvalidFieldError(f"the request has {len(tasks):,} inputs, and the queue holds less.", "inputs")

    def _logprobs(self, source: Ids, prefix: Ids, seed: int = 0) -> Array:
        """After as many tokens as the source has, the end is most probable."""
        rng = np.random.default_rng([seed, len(source), *source, *prefix])
        logits = rng.normal(size=len(PHONES) + 4).astype(np.float32)
        logits[SPECIAL["eos"]] += 8 if len(prefix) >= len(source) else -8
        logits[[SPECIAL["pad"], SPECIAL["bos"], SPECIAL["unk"]]] -= 20
        return np.asarray(logits - math.log(np.exp(logits.astype(np.float64)).sum()), dtype=np.float32)
