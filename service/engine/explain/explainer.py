"""The explainer: computes attention weights of finished searches, one at a time, in a thread of its own.

It runs the bundle's `full` graph, which lanes do not use: opened with the bundle and loaded on first use, on the CPU,
with threads of its own, so that lanes go on decoding meanwhile and compute the same bits. Memory is bounded: there is
one run at a time, a run that would take more than a share of the limit is refused, and jobs that wait hold no tensors.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from attendant.export.bundle import Bundle
from attendant.service.engine.batch.job import Job
from attendant.service.engine.explain import attention
from attendant.service.engine.explain.counts import count_included
from attendant.service.engine.explain.explain_queue import ExplainQueue
from attendant.service.engine.explain.full_graph import FullGraph, load_full_graph, open_full_graph
from attendant.service.engine.explain.look import Look, passed_bytes
from attendant.service.engine.interface import Submission
from attendant.service.engine.queue.thread_budget import ThreadBudget
from attendant.service.engine.tasks import (
    EventCallback,
    Explain,
    Explained,
    Finished,
    Generated,
    Ids,
    NewTokens,
    Result,
    Score,
    Scored,
    Task,
    unexplained,
)
from attendant.service.errors import QueueFullError, ServiceError
from attendant.service.memory import MemoryAccount

MAX_PENDING = 32  # explanations that are accepted and have no outcome yet
MAX_BEST_EFFORT = 4096  # of those that only align; more only if they came together
log = logging.getLogger("attendant")


class SubmittedExplanations:
    """Jobs that were submitted together, some of which are to be explained."""

    def __init__(self, submitted: Submission, explainer: Explainer) -> None:
        self._submitted, self._explainer = submitted, explainer

    def cancel(self) -> None:
        self._submitted.cancel()
        self._explainer.notice_cancelled()


class Explainer:
    def __init__(
        self,
        bundle: Bundle,
        precision: str,
        threads: int,
        thread_budget: ThreadBudget | None,
        memory: MemoryAccount,
    ) -> None:
        """`precision` is the one that lanes decode with; attention is computed in f32 where the bundle has it.

        `thread_budget` is shared with other engines; None: there are no others.
        """
        self._memory = memory
        self._bundle, self._threads, self._thread_budget = bundle, threads, thread_budget
        self._opened = open_full_graph(bundle, precision)
        self._graph: FullGraph | None = None
        self._queue = ExplainQueue()
        self._pending = self._best_effort = 0
        self._lock = threading.Lock()  # of both

    def count_pending(self) -> int:
        """Explanations whose search is done, without an outcome yet."""
        return self._queue.count()

    def reserve(self, tasks: Sequence[Task]) -> None:
        """Count the explanations among tasks that are to be submitted; QueueFullError if there are too many."""
        best_effort = sum(isinstance(task, Explain) and task.best_effort for task in tasks)
        whole = sum(isinstance(task, Explain) for task in tasks) - best_effort
        with self._lock:
            crowded = best_effort and self._best_effort and self._best_effort + best_effort > MAX_BEST_EFFORT
            if (whole and self._pending + whole > MAX_PENDING) or crowded:
                pending = self._pending + self._best_effort
                raise QueueFullError(f"{pending:,} explanations are under way already; try again in 1 s.", 1)
            self._pending += whole
            self._best_effort += best_effort

    def release(self, tasks: Sequence[Task]) -> None:
        with self._lock:
            for task in tasks:
                if isinstance(task, Explain):
                    self._best_effort -= task.best_effort
                    self._pending -= not task.best_effort

    def releasing(self, task: Explain, on_event: EventCallback) -> EventCallback:
        """Wrap the callback of an explanation: its outcome also releases its reservation."""

        def call(event: NewTokens | Finished) -> None:
            if isinstance(event, Finished):
                self.release([task])
            on_event(event)

        return call

    def add(self, job: Job, found: Result) -> None:
        """Queue a job whose search is done; called by a lane."""
        assert isinstance(found, Generated | Scored)
        self._queue.add(job, found)

    def loop(self) -> None:
        """Run until it is closed and nothing waits, or until it is stopped."""
        while self._queue.wait():
            self.run_next()

    def watch_deadlines(self) -> None:
        """Jobs get their outcome at their deadline, or when they are cancelled, also while others are computed."""
        self._queue.watch_deadlines()

    def notice_cancelled(self) -> None:
        """Some job may have been cancelled."""
        self._queue.notice_cancelled()

    def run_next(self) -> None:
        """Compute the first waiting job, and deliver its outcome unless its deadline does."""
        begun = self._queue.begin(self._stop_run)
        if begun is None:
            return
        job, found = begun
        try:
            outcome = self._outcome(job, found)
            if outcome is not None and self._queue.claim(job):
                if isinstance(outcome, Exception):
                    job.fail(outcome)
                else:
                    job.finish_with(outcome)
        finally:
            self._queue.end()

    def _outcome(self, job: Job, found: Generated | Scored) -> Explained | Exception | None:
        """None if the job has its outcome already."""
        assert isinstance(job.task, Explain)
        try:
            return self._explain(job, found)
        except ServiceError as error:
            return unexplained(found) if job.task.best_effort else error
        except Exception:
            if not self._queue.is_wanted(job):
                return None  # its run was stopped
            if job.task.best_effort:
                log.exception("an alignment failed; its request is answered without")
                return unexplained(found)
            log.exception("an explanation failed; its request gets an error")
            return ServiceError("the server failed while explaining; the request may be sent again.")

    def _stop_run(self) -> None:
        if self._graph is not None:
            self._graph.stop()

    def close(self) -> None:
        """Nothing more will be added."""
        self._queue.close()

    def stop(self) -> None:
        """End after the run that is under way."""
        self._queue.stop()

    def drain(self, error: Exception) -> None:
        """Fail the jobs that still wait; only once its thread has ended."""
        for job in self._queue.drain():
            job.fail(error)
        if self._graph is not None:
            self._memory.give_back(self._graph)

    def _explain(self, job: Job, found: Generated | Scored) -> Explained | None:
        task, special = job.task, job.search.special
        assert isinstance(task, Explain)
        ids, steps = _target_of(task, found)
        start = (special.bos, *special.start)
        read = (*start, *ids)[: len(special.start) + steps]
        size = self._check_size(task, steps, len(read))
        started = time.monotonic()
        if self._graph is None:
            self._graph = load_full_graph(self._opened, self._threads, self._memory, self._bundle.name)
        with self._turn(), self._memory.holding(size):
            if not self._queue.is_wanted(job):
                return None
            look = Look(self._graph, task, special, lambda: self._queue.is_wanted(job))
            weights = look.run(read)
            chosen = tuple(attention.choose(kind, weights[kind], task.attention) for kind in task.attention.kinds)
            aligned = attention.align(weights["cross"], task.alignment, task.alignable, len(ids))
            seen = look.collect(weights, ids, steps)
            del weights
        seconds = time.monotonic() - started
        return Explained(found, chosen, start, aligned, self._graph.precision, seconds, **seen)

    def _turn(self) -> AbstractContextManager[None]:
        return nullcontext() if self._thread_budget is None else self._thread_budget.beside()

    def _check_size(self, task: Explain, steps: int, read: int) -> int:
        """Refuse what would be too much to answer, or to compute here; else the bytes that a run takes."""
        sizes, source = self._bundle.sizes, len(task.source) + 1
        count = attention.count_values(task.attention, sizes, source, steps, read)
        included = count_included(task.include, task.attention, sizes, source, steps, read)
        attention.check_value_count(count + included, task.max_values)
        every = sizes.encoder_layers * source**2 + sizes.decoder_layers * (read + source) * read
        computed = 4 * (2 * sizes.heads * every + 3 * read * sizes.target_vocab)  # 2: attention is stacked in a copy
        computed += 4 * (2 * included + passed_bytes(task, sizes, source, read))
        what = f"explaining {source} source and {read} target tokens of this model"
        self._memory.check_possible(computed, what, "source")
        return computed


def _target_of(task: Explain, found: Generated | Scored) -> tuple[Ids, int]:
    """The target's ids without the end token; and the number of steps, with the end token's if there is one."""
    if isinstance(task.search, Score):
        return task.search.target, len(task.search.target) + 1
    assert isinstance(found, Generated)
    best = found.hypotheses[0]
    return best.ids, len(best.logprobs)
