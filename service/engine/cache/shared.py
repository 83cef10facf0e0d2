"""An engine that computes equal tasks once: those in flight share a computation, and answers may be cached.

A computation runs for all tasks that wait for it, and is cancelled when none does. Each task keeps its own deadline: it
joins a computation only if that one's deadline is no later than its own, and its time is not much longer. If a deadline
cuts the computation short, tasks with time left are submitted again, and get what it had found if that brings nothing
better. Explanations are neither shared nor cached. A streamed task may be answered from the cache, all tokens at once,
but joins no computation, since it would miss the tokens that were emitted before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from attendant.service.engine.cache.answers import AnswerCache, Key, is_cut_short, key_of
from attendant.service.engine.interface import EngineInterface, Submission, WrappedEngine
from attendant.service.engine.observer import EngineObserver
from attendant.service.engine.tasks import EventCallback, Finished, Generate, Generated, NewTokens, Result, Task
from attendant.service.errors import CancelledError, DeadlineError

MAX_TIME_RATIO = 1.1  # a task joins a computation if its time left is at most this many times what that one was given

log = logging.getLogger("attendant")


@dataclass(eq=False, slots=True)
class Waiter:
    """One task of a submission, until it has its outcome."""

    task: Task
    key: Key | None
    index: int  # among those submitted together
    on_event: EventCallback
    deadline: float | None
    client: str | None = None  # whoever asked
    computation: Computation | None = None  # the one that it waits for
    held: bool = False  # its submission may still be refused: deliver no outcome yet
    answer: Result | Exception | None = None  # from the cache, or one that came while it was held
    expired: bool = False  # the computation that it joined was cut short while it was held
    fallback: Generated | None = None  # what a computation cut short had found; delivered if nothing better comes
    done: bool = False

    def finish(self, answer: Result | Exception) -> None:
        """Deliver the outcome; called once, by the one that has set `done`."""
        if self.fallback is not None and _is_worse(answer, self.fallback):
            answer = self.fallback
        try:
            if self.answer is answer and self.task.stream and isinstance(answer, Generated):
                self._emit_all(answer)
            self.on_event(Finished(self.index, answer))
        except Exception:
            log.exception("a request's callback failed")

    def _emit_all(self, answer: Generated) -> None:
        """Emit the tokens of a cached answer."""
        best = answer.hypotheses[0]
        count = len(best.ids)
        if count:
            self.on_event(NewTokens(self.index, best.ids, best.logprobs[:count], best.top_logprobs[:count]))


@dataclass(eq=False, slots=True)
class Computation:
    """A task in the wrapped engine, and the waiters for its answer."""

    key: Key | None
    batch: Batch
    first: Waiter  # the one that started it; only it gets NewTokens
    seconds: float | None  # from its submission to its deadline; None: it has none
    waiters: list[Waiter]


@dataclass(eq=False, slots=True)
class Batch:
    """Computations that were submitted to the engine together, and can only be cancelled together."""

    computations: list[Computation] = field(default_factory=list)
    waiting: int = 0  # waiters of all of them
    unfinished: int = 0  # computations without an outcome
    submission: Submission | None = None
    abandoned: bool = False


class SharedSubmission:
    def __init__(self, engine: SharedEngine, waiters: Sequence[Waiter]) -> None:
        self._engine, self._waiters = engine, waiters

    def cancel(self) -> None:
        self._engine.cancel(self._waiters)


class SharedEngine(WrappedEngine):
    """EngineInterface around an engine; it owns that engine."""

    def __init__(
        self,
        engine: EngineInterface,
        observer: EngineObserver | None = None,
        cache_bytes: int = 0,
        share_in_flight: bool = True,
    ) -> None:
        """`cache_bytes`: approximate memory for cached answers; 0: no cache."""
        super().__init__(engine)
        self._observer = observer or EngineObserver()
        self._share_in_flight = share_in_flight
        self._max_requests = engine.description.max_queue_requests
        self._cache = AnswerCache(cache_bytes)
        self._in_flight: dict[Key, Computation] = {}
        self._closed = False
        self._lock = threading.Lock()  # never held while the engine or a callback is called

    def count_cached_bytes(self) -> int:
        return self._cache.bytes

    def close(self, grace: float = 0.0) -> None:
        with self._lock:
            self._closed = True
        self._engine.close(grace)
        with self._lock:
            self._cache.clear()

    def submit(
        self, tasks: Sequence[Task], on_event: EventCallback, deadline: float | None = None, client: str | None = None
    ) -> Submission:
        """Like the engine's; cached answers are delivered in this thread."""
        if len(tasks) > self._max_requests:
            return self._engine.submit(tasks, on_event, deadline, client)  # refused there, even if some could be shared
        waiters = [Waiter(task, key_of(task), index, on_event, deadline, client) for index, task in enumerate(tasks)]
        self._submit(waiters)
        return SharedSubmission(self, waiters)

    def _submit(self, waiters: Sequence[Waiter]) -> None:
        """Give every waiter a computation or a cached answer; or none, and raise the engine's refusal."""
        batch, now = Batch(), time.monotonic()
        with self._lock:
            placed = [self._place(waiter, batch, now) for waiter in waiters if not waiter.done]
        if batch.computations:
            tasks = [computation.first.task for computation in batch.computations]
            try:
                first = waiters[0]
                submission = self._engine.submit(tasks, partial(self._on_event, batch), first.deadline, first.client)
            except Exception:
                self._withdraw(waiters, batch)
                raise
            with self._lock:
                batch.submission = submission
                abandoned = batch.abandoned
            if abandoned:
                submission.cancel()
        self._count(placed)
        self._release(waiters)

    def _count(self, placed: Sequence[str | None]) -> None:
        for kind in placed:
            if kind == "missed":
                self._observer.cache_missed()
            elif kind is not None:
                self._observer.cache_hit(kind)

    def _place(self, waiter: Waiter, batch: Batch, now: float) -> str | None:
        """Find a cached answer ("finished") or a computation to join ("in_flight"), or add one to `batch` ("missed").

        Returns None for a task that is never shared, which also gets a computation of its own.
        """
        key, found = waiter.key, None
        if key is not None and not self._closed:
            if self._cache.max_bytes:
                waiter.answer = self._cache.get(key)
                if waiter.answer is not None:
                    waiter.held = True
                    return "finished"
            found = self._in_flight.get(key)
            if found is not None and _may_join(waiter, found, now):
                waiter.held = found.batch is not batch
                self._wait(waiter, found)
                return "in_flight"
        seconds = None if waiter.deadline is None else waiter.deadline - now
        computation = Computation(key, batch, waiter, seconds, [])
        batch.computations.append(computation)
        batch.unfinished += 1
        self._wait(waiter, computation)
        longest = found is None or _is_later(waiter.deadline, found.first.deadline)
        if key is not None and self._share_in_flight and longest:
            self._in_flight[key] = computation
        return None if key is None else "missed"

    def _wait(self, waiter: Waiter, computation: Computation) -> None:
        waiter.computation = computation
        computation.waiters.append(waiter)
        computation.batch.waiting += 1

    def _release(self, waiters: Sequence[Waiter]) -> None:
        """Their submission was accepted: deliver what came for them while they were held."""
        with self._lock:
            held = [(waiter, waiter.answer, waiter.expired) for waiter in waiters if waiter.held]
            for waiter, _, _ in held:
                waiter.held = waiter.expired = False
        for waiter, answer, expired in held:
            if answer is not None:
                self._finish([waiter], answer)
            elif expired:
                self._submit_again(waiter)

    def _withdraw(self, waiters: Sequence[Waiter], batch: Batch) -> None:
        """Their submission was refused: detach them; other waiters that joined it meanwhile are submitted again."""
        with self._lock:
            abandoned = self._leave(waiters)
            others = [waiter for computation in batch.computations for waiter in computation.waiters]
            self._leave(others)
            self._forget(batch.computations)
            for waiter in others:
                waiter.expired = waiter.held
            again = [waiter for waiter in others if not waiter.held]
        for submission in abandoned:
            submission.cancel()
        for waiter in again:
            self._submit_again(waiter)

    def _on_event(self, batch: Batch, event: NewTokens | Finished) -> None:
        computation = batch.computations[event.index]
        first = computation.first
        if isinstance(event, NewTokens):
            if not first.done:
                first.on_event(event if event.index == first.index else replace(event, index=first.index))
            return
        answer = event.answer
        cut_short = isinstance(answer, DeadlineError) or is_cut_short(answer)
        with self._lock:
            self._forget([computation])
            if computation.key is not None and not isinstance(answer, Exception) and not self._closed:
                self._cache.put(computation.key, answer)
            waiters, computation.waiters = computation.waiters, []
            batch.waiting -= len(waiters)
            batch.unfinished -= 1
            abandoned = self._abandon(batch) if not batch.waiting and batch.unfinished else []
            ready, again = [], []
            for waiter in waiters:
                waiter.computation = None
                if cut_short and waiter.deadline != first.deadline:
                    waiter.expired = waiter.held
                    waiter.fallback = answer if isinstance(answer, Generated) else waiter.fallback
                    again += [] if waiter.held else [waiter]
                elif waiter.held:
                    waiter.answer = answer
                else:
                    ready.append(waiter)
        self._finish(ready, answer)
        for submission in abandoned:
            submission.cancel()
        for waiter in again:
            self._submit_again(waiter)

    def _submit_again(self, waiter: Waiter) -> None:
        """Submit a waiter whose submission was accepted before: a refusal is now its outcome."""
        try:
            self._submit([waiter])
        except Exception as error:
            self._finish([waiter], error)

    def _finish(self, waiters: Sequence[Waiter], answer: Result | Exception) -> None:
        with self._lock:
            waiters = [waiter for waiter in dict.fromkeys(waiters) if not waiter.done]
            for waiter in waiters:
                waiter.done = True
        for waiter in waiters:
            waiter.finish(answer)

    def cancel(self, waiters: Sequence[Waiter]) -> None:
        with self._lock:
            waiters = [waiter for waiter in waiters if not waiter.done]
            for waiter in waiters:
                waiter.done, waiter.fallback = True, None
            abandoned = self._leave(waiters)
        for submission in abandoned:
            submission.cancel()
        for waiter in waiters:
            waiter.finish(CancelledError())

    def _leave(self, waiters: Sequence[Waiter]) -> list[Submission]:
        """Detach waiters from their computations; returns the submissions that nobody waits for now, to cancel."""
        abandoned: list[Submission] = []
        for waiter in waiters:
            computation, waiter.computation = waiter.computation, None
            if computation is None:
                continue
            computation.waiters.remove(waiter)
            computation.batch.waiting -= 1
            if not computation.batch.waiting:
                abandoned += self._abandon(computation.batch)
        return abandoned

    def _abandon(self, batch: Batch) -> list[Submission]:
        """Nobody waits for a batch: returns its submission, to be cancelled; [] while it is still being submitted."""
        batch.abandoned = True
        self._forget(batch.computations)
        return [] if batch.submission is None else [batch.submission]

    def _forget(self, computations: Sequence[Computation]) -> None:
        """No other task can join these computations any more."""
        for computation in computations:
            if computation.key is not None and self._in_flight.get(computation.key) is computation:
                del self._in_flight[computation.key]


def _may_join(waiter: Waiter, computation: Computation, now: float) -> bool:
    if isinstance(waiter.task, Generate) and waiter.task.stream:
        return False
    deadline, earlier = waiter.deadline, computation.first.deadline
    if deadline is None or earlier is None or computation.seconds is None:
        return deadline is earlier is None
    return deadline >= earlier and deadline - now <= MAX_TIME_RATIO * computation.seconds


def _is_later(deadline: float | None, other: float | None) -> bool:
    return other is not None and (deadline is None or deadline > other)


def _is_worse(answer: Result | Exception, fallback: Generated) -> bool:
    """Whether the fallback is at least as good; a complete answer is never worse."""
    if not isinstance(answer, Generated):
        return True
    return is_cut_short(answer) and _progress(answer) <= _progress(fallback)


def _progress(found: Generated) -> tuple[bool, float]:
    """Sort key of partial answers: whether the best hypothesis has finished, then its score if so, else its length."""
    best = found.hypotheses[0]
    ended = best.finish_reason != "deadline"
    return ended, best.score if ended else len(best.ids)
