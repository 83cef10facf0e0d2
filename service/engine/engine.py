"""The engine: loads a bundle, checks its certificate, which also warms it up, and decodes in lanes.

Tasks wait in the scheduler; each lane is a thread that takes some, decodes them together and delivers their outcomes.
With little to do, one lane uses all processors; with much, the lanes share them: the threads of one large batch would
lose more time waiting for each other than those of several smaller batches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from attendant import kernels
from attendant.export.bundle import Bundle, check_unchanged
from attendant.service.engine.batch.job import Job
from attendant.service.engine.batch.lane import Lane
from attendant.service.engine.batch.runtime import Runtime
from attendant.service.engine.certificate import check_certificate
from attendant.service.engine.collect import Outcomes
from attendant.service.engine.explain.explainer import Explainer, SubmittedExplanations
from attendant.service.engine.integrity import checking_weights
from attendant.service.engine.interface import CertificateResult, EngineDescription, Submission
from attendant.service.engine.limits import alignment_of, check_task, glossaries_of, languages_of, start_tokens
from attendant.service.engine.observer import EngineObserver
from attendant.service.engine.queue.scheduler import Scheduler
from attendant.service.engine.queue.thread_budget import ThreadBudget
from attendant.service.engine.resources import EngineSettings, Resources, allocate, total_threads
from attendant.service.engine.search.search import SpecialIds
from attendant.service.engine.tasks import EventCallback, Explain, Result, Task
from attendant.service.errors import NotReadyError, QueueFullError
from attendant.service.memory import MemoryAccount
from attendant.service.text.glossary import Glossary
from attendant.service.text.languages import Languages
from attendant.service.text.tokenizer import Tokenizer

__all__ = ["Engine", "EngineSettings", "ThreadBudget", "total_threads"]

MAX_REPLAYED_ROWS = 16  # samples of the certificate that are decoded together
MOST_EXAMPLES = 8


class Engine:
    def __init__(
        self,
        bundle: Bundle,
        settings: EngineSettings | None = None,
        observer: EngineObserver | None = None,
        thread_budget: ThreadBudget | None = None,
        memory: MemoryAccount | None = None,
    ) -> None:
        """Load, check the certificate, warm up; StartError if that fails.

        Engines may share a `thread_budget`, and a `memory` account, on which this one sets aside what it needs.
        """
        settings = settings or EngineSettings()
        self._memory = memory or MemoryAccount(settings.memory_limit)
        self.bundle, self._observer = bundle, observer or EngineObserver()
        self._lane_threads: list[threading.Thread] = []
        self._explainer_threads: list[threading.Thread] = []  # two, once they are started
        self._deadline_threads: list[threading.Thread] = []  # one, once it is started
        ids = bundle.special_ids
        self._special = SpecialIds(ids["pad"], ids["bos"], ids["eos"])
        with checking_weights(bundle, settings):
            self.source_tokenizer, self.target_tokenizer = make_tokenizers(bundle)
            self._load(settings, thread_budget)
            start, languages = start_tokens(bundle), languages_of(bundle)
            glossaries = glossaries_of(bundle, self.target_tokenizer)
            certificate = self._certify()  # before start tokens are set: its answers include them
        resources = self._resources
        self._special = replace(self._special, start=start)
        start_length = max(len(start), languages.longest_target_prefix)
        self.description = describe(bundle, settings, resources, certificate, languages, glossaries, start_length)
        check_unchanged(bundle)  # every file is open
        self._memory.set_aside(self, resources.memory_bytes(bundle))

    def _load(self, settings: EngineSettings, thread_budget: ThreadBudget | None) -> None:
        """The graphs, and what runs them."""
        bundle = self.bundle
        self._resources = resources = allocate(bundle, settings, thread_budget)
        self._scheduler = Scheduler(
            resources.lanes, resources.max_rows, settings.max_queue_requests, settings.max_queue_tokens
        )
        self._lanes = [
            Lane(number, self._scheduler, resources.all_threads, resources.lane_share, self._observer, thread_budget)
            for number in range(resources.lanes)
        ]
        self._explainer = Explainer(
            bundle,
            resources.all_threads.precision,
            resources.lane_share.lane_threads,
            thread_budget,
            self._memory,
        )

    def count_waiting(self) -> int:
        return self._scheduler.count_waiting()

    def count_waiting_tokens(self) -> int:
        return self._scheduler.count_waiting_tokens()

    def count_running(self) -> int:
        return self._scheduler.count_running() + self._explainer.count_pending()

    def count_cached_bytes(self) -> int:
        return 0

    def submit(
        self, tasks: Sequence[Task], on_event: EventCallback, deadline: float | None = None, client: str | None = None
    ) -> Submission:
        """Any thread may call it. Raises as EngineInterface says, or `on_event` gets one Finished per task."""
        explains = any(isinstance(task, Explain) for task in tasks)
        jobs = self._jobs(tasks, on_event, self._observer, deadline)
        try:
            self._explainer.reserve(tasks)
            try:
                submitted = self._scheduler.submit(jobs, client)
                return SubmittedExplanations(submitted, self._explainer) if explains else submitted
            except Exception:
                self._explainer.release(tasks)
                raise
        except QueueFullError:
            self._observer.queue_full()
            raise

    def _jobs(
        self, tasks: Sequence[Task], on_event: EventCallback, observer: EngineObserver, deadline: float | None = None
    ) -> list[Job]:
        now, start = time.monotonic(), self._special.start
        jobs = []
        for index, task in enumerate(tasks):
            special = self._special if task.start in (None, start) else replace(self._special, start=task.start)
            check_task(task, self.bundle, special.start)
            if isinstance(task, Explain):
                releasing, then = self._explainer.releasing(task, on_event), self._explainer.add
                jobs.append(Job(task, index, releasing, deadline, now, special, observer, then))
            else:
                jobs.append(Job(task, index, on_event, deadline, now, special, observer))
        return jobs

    def start(self) -> None:
        self._lane_threads = [
            start_thread(f"attendant-lane-{number}", lane.loop) for number, lane in enumerate(self._lanes)
        ]
        self._explainer_threads = [
            start_thread("attendant-explainer", self._explainer.loop),
            start_thread("attendant-explain-deadlines", self._explainer.watch_deadlines),
        ]
        self._deadline_threads = [start_thread("attendant-deadlines", self._expire_waiting)]

    def _expire_waiting(self) -> None:
        """Waiting jobs get their outcome at their deadline, however long the lanes' steps are."""
        while self._scheduler.wait_for_expiry():
            now = time.monotonic()
            for job in self._scheduler.expire(now):
                job.drop(now)

    def close(self, grace: float = 0.0) -> None:
        """Accept nothing more, finish what was accepted within `grace` seconds, and fail the rest."""
        until = time.monotonic() + grace
        self._scheduler.close()
        for thread in self._lane_threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._scheduler.stop()
        for thread in (*self._lane_threads, *self._deadline_threads):
            thread.join()
        self._explainer.close()
        for thread in self._explainer_threads[:1]:  # the other one ends when it is stopped
            thread.join(max(0.0, until - time.monotonic()))
        self._explainer.stop()
        for thread in self._explainer_threads:
            thread.join()
        error = NotReadyError("the server shut down before the answer was ready; ask another one.")
        for job in self._scheduler.drain():
            job.fail(error)
        for lane in self._lanes:
            lane.fail_all(error)
        self._explainer.drain(error)
        self._memory.give_back(self)

    def iteration(self) -> None:
        """One iteration of every lane, of one step, and of the explainer, in this thread."""
        for lane in self._lanes:
            lane.iteration(most_steps=1)
        self._explainer.run_next()

    def run(self, tasks: Sequence[Task]) -> list[Result]:
        """Results in the order of the tasks, computed in this thread; only before the engine is started."""
        outcomes = Outcomes(len(tasks))
        self.submit(tasks, outcomes.on_event)
        while self.count_waiting() or self.count_running():
            self.iteration()
        return outcomes.results()

    def _certify(self) -> CertificateResult:
        """Replay the certificate on every lane and with every runtime, which also warms them up."""
        runtimes = self._resources.runtimes
        pairs = [
            (self._lanes[i % len(self._lanes)], runtimes[i % len(runtimes)])
            for i in range(max(len(self._lanes), len(runtimes)))
        ]
        decoders = [partial(self._replay, lane, runtime) for lane, runtime in pairs]
        return check_certificate(self.bundle, self._resources.all_threads.precision, decoders)

    def _replay(self, lane: Lane, runtime: Runtime, tasks: Sequence[Task]) -> list[Result]:
        """Results in the order of the tasks, decoded by one lane without the queue."""
        outcomes = Outcomes(len(tasks))
        jobs = self._jobs(tasks, outcomes.on_event, EngineObserver())
        count = min(MAX_REPLAYED_ROWS, self._resources.max_rows)
        for first in range(0, len(jobs), count):
            lane.replay(jobs[first : first + count], runtime)
        return outcomes.results()


def start_thread(name: str, target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def describe(
    bundle: Bundle,
    settings: EngineSettings,
    resources: Resources,
    certificate: CertificateResult,
    languages: Languages,
    glossaries: Mapping[str, Glossary],
    start_length: int,
) -> EngineDescription:
    runtime = resources.all_threads
    return EngineDescription(
        model=bundle.name,
        sizes=bundle.sizes,
        special_ids=bundle.special_ids,
        variants=tuple(bundle.variants),
        produced_by=bundle.produced_by,
        max_source_length=bundle.limits["max_source_length"],
        max_target_length=bundle.limits["max_target_length"] - start_length,
        precision=runtime.precision,
        provider=runtime.provider,
        provider_fallback=runtime.fallback,
        kernels=None if runtime.kernels_reason else kernels.path_name(),
        kernels_reason=runtime.kernels_reason,
        threads=resources.threads,
        lanes=resources.lanes,
        lanes_reason=resources.lanes_reason,
        weight_bytes=resources.weight_bytes,
        kv_cache_bytes=resources.kv_cache_bytes(bundle),
        max_rows=resources.max_rows,
        max_queue_requests=settings.max_queue_requests,
        max_queue_tokens=settings.max_queue_tokens,
        certificate=certificate,
        languages=languages,
        glossaries=glossaries,
        generation=bundle.generation,
        alignment=alignment_of(bundle),
        alignment_chosen=bool(bundle.alignment),
        examples=examples_of(bundle),
        about=bundle.description,
    )


def examples_of(bundle: Bundle) -> tuple[str, ...]:
    """The manifest's, or some sources of the certificate, where it has their texts."""
    if bundle.examples is not None:
        return bundle.examples[:MOST_EXAMPLES]
    samples = bundle.certificate.get("samples", [])[:MOST_EXAMPLES]
    return tuple(sample["source"] for sample in samples if isinstance(sample.get("source"), str))


def make_tokenizers(bundle: Bundle) -> tuple[Tokenizer, Tokenizer]:
    """The source and the target tokenizer; the same object if their files are the same."""
    source, target = (bundle.tokenizers[side] for side in ("source", "target"))
    first = Tokenizer(source, bundle.special_ids)
    same = source.read_bytes() == target.read_bytes()
    return first, first if same else Tokenizer(target, bundle.special_ids)
