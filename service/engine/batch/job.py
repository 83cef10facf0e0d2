"""A job: one task on its way through the engine, from its submission to its one outcome."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from attendant.service.engine.batch.kv_cache import Encoded
from attendant.service.engine.observer import EngineObserver
from attendant.service.engine.queue.fair import Request
from attendant.service.engine.search.beam import GenerateSearch
from attendant.service.engine.search.constraints.grouped_beam import GroupedBeamSearch
from attendant.service.engine.search.sampling import SampleSearch
from attendant.service.engine.search.search import Candidate, NextTokenSearch, Row, ScoreSearch, Search, SpecialIds
from attendant.service.engine.tasks import (
    Distribution,
    EventCallback,
    Explain,
    Finished,
    Generate,
    Generated,
    Hypothesis,
    NewTokens,
    Result,
    Score,
    Scored,
    Task,
    Timing,
    unexplained,
)
from attendant.service.errors import CancelledError, DeadlineError, NoNumbersError, ServiceError

log = logging.getLogger("attendant")


def _has_nan(result: Result) -> bool:
    """Whether a log-probability is no number: a kernel, the memory or the weights are at fault."""
    if isinstance(result, Generated):
        return any(math.isnan(hypothesis.score) for hypothesis in result.hypotheses)
    if isinstance(result, Scored):
        return any(map(math.isnan, result.logprobs))
    return isinstance(result, Distribution) and math.isnan(float(result.logprobs.sum()))


def make_search(special: SpecialIds, task: Task) -> Search:
    if isinstance(task, Explain):
        return make_search(special, task.search)
    if isinstance(task, Generate):
        if task.options.samples:
            return SampleSearch(special, task)
        has_terms = task.constraints is not None and task.constraints.terms
        return GroupedBeamSearch(special, task) if has_terms else GenerateSearch(special, task)
    return ScoreSearch(special, task) if isinstance(task, Score) else NextTokenSearch(special, task)


class NextInputs(NamedTuple):
    """A search's inputs of the next step."""

    tokens: list[int]  # the last token of every live hypothesis
    position: int  # of each of them
    top_k: int  # how many of the most probable tokens it looks at
    whole: bool  # whether it needs the log-probability of every token


@dataclass(eq=False, slots=True)
class Job:
    """Its holder (the queue, then a lane) delivers its outcome. An exception in its search fails this job alone."""

    task: Task
    index: int  # among those submitted together
    on_event: EventCallback
    deadline: float | None  # on the clock of time.monotonic()
    submitted: float
    special: SpecialIds
    observer: EngineObserver
    next_stage: Callable[[Job, Result], None] | None = None  # gets the search's result and delivers the outcome
    encode_started: float = 0.0
    decode_started: float = 0.0
    emitted: int = 0  # tokens that were sent as NewTokens
    decoded: int = 0  # tokens of all its hypotheses, start tokens not counted
    encoding: bool = False  # a lane is encoding its source while it waits
    encoded: Encoded | None = None  # keys and values of its source, if encoded while it waited
    cancelled: bool = False
    finished: bool = False  # its outcome was delivered
    request: Request = field(init=False)  # the one that it was submitted with, from then on
    kept_rows: int = 0  # of its rows in a lane, those that are kept for requests that hold none
    answers: tuple[Hypothesis, ...] | None = None  # of compiled code, which has done all that its search would have
    _search: Search | None = field(default=None, init=False)

    @property
    def search(self) -> Search:
        """What chooses its tokens; made when it is first asked for, so that a large request is queued at once."""
        if self._search is None:
            self._search = make_search(self.special, self.task)
        return self._search

    def expired(self, now: float) -> bool:
        return self.deadline is not None and now >= self.deadline

    def next_inputs(self) -> NextInputs:
        """What its rows need of the next step."""
        try:
            search = self.search
            return NextInputs(search.last_tokens(), search.position, search.wanted(), search.needs_all())
        except Exception:
            self._fail_search()
            return NextInputs([], 0, 1, False)

    def advance(self, rows: Sequence[Row], ranked: Sequence[Candidate] | None = None) -> list[int]:
        """Choose next tokens: for each hypothesis now live, the index of the one it extends; [] if done or failed.

        `ranked` are the candidates of all rows, best first, if they are ranked already; `rows` is ignored then.
        """
        if self.finished:
            return []
        try:
            if self.search.is_started():
                self.decoded += len(self.search.live)
            parents = self.search.advance(rows) if ranked is None else self.search.keep(ranked)
            if self.task.stream:
                self._emit()
        except Exception:
            self._fail_search()
            return []
        return parents

    def _emit(self) -> None:
        start, stop = self.emitted, self.search.agreed_length()
        if stop > start:
            self.emitted = stop
            self.on_event(NewTokens(self.index, *self.search.agreed_tokens(start, stop)))

    def has_token(self) -> bool:
        """Whether its first token was emitted or, if it is not streamed, chosen."""
        return self.emitted > 0 or self.answers is not None or (not self.task.stream and self.search.has_token())

    def complete(self, now: float) -> None:
        """Deliver the result of a search that is done; one that failed has had its outcome."""
        if self.finished:
            return
        try:
            result = self.result(self._timing(now))
        except Exception:
            self._fail_search()
            return
        self._succeed(result, now)

    def result(self, timing: Timing) -> Result:
        """The result of a search that is done."""
        return self.search.result(timing) if self.answers is None else Generated(self.answers, timing)

    def drop(self, now: float) -> None:
        """End a cancelled or expired job: an error or, if it expired and has no next stage, the best answer so far."""
        if self.cancelled:
            self.observer.cancelled(self.decoded)
            self.fail(CancelledError())
            return
        self.observer.expired()
        best_effort = isinstance(self.task, Explain) and self.task.best_effort
        try:
            partial = self.next_stage is None or best_effort
            result = self.search.partial_result(self._timing(now)) if partial else None
        except Exception:
            self._fail_search()
            return
        if result is None:
            self.fail(DeadlineError("the deadline passed before there was anything to answer; raise timeout_ms."))
        elif best_effort and isinstance(result, Generated | Scored):
            self._finish(unexplained(result))
        else:
            self._succeed(result, now)

    def fail(self, error: Exception) -> None:
        self._finish(error)

    def _fail_search(self) -> None:
        log.exception("a search failed; its request gets an error")
        self.fail(ServiceError("the server failed while decoding; the request may be sent again."))

    def _succeed(self, result: Result, now: float) -> None:
        if _has_nan(result):
            log.error("the model gave a log-probability that is no number; the request gets an error")
            self.fail(NoNumbersError("the model gave no numbers for this request; it may be sent again."))
            return
        if isinstance(result, Generated):
            lengths = [len(hypothesis.logprobs) for hypothesis in result.hypotheses]
            seconds = (now - self.decode_started) / max(1, *lengths)
            self.observer.generated(sum(lengths), max(0, self.decoded - sum(lengths)), seconds)
        if self.next_stage is None:
            self._finish(result)
        else:
            self.next_stage(self, result)

    def finish_with(self, result: Result) -> None:
        """Deliver what the next stage made of the search's result."""
        self._finish(result)

    def _finish(self, outcome: Result | Exception) -> None:
        if self.finished:
            return
        self.finished = True
        try:
            self.on_event(Finished(self.index, outcome))
        except Exception:
            log.exception("a request's callback failed")

    def _timing(self, now: float) -> Timing:
        return Timing(
            queue=(self.encode_started or now) - self.submitted,
            encode=self.decode_started - self.encode_started,
            decode=now - self.decode_started if self.decode_started else 0.0,
        )
