"""What the engine is asked for, and what it answers: ids in, ids out. Whoever asks has checked the ranges.

Generate      the best targets of a source
NextToken     the distribution after a prefix
Score         the log-probabilities of a given target
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Ids = tuple[int, ...]
Array = np.ndarray[Any, Any]
EarlyStopping = bool | Literal["never"]
TokenLogprobs = tuple[tuple[int, float], ...]  # (token, log-probability) of the most probable tokens, best first


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a target is searched for."""

    beam_size: int = 1  # live hypotheses kept at each step; 1 is greedy
    num_hypotheses: int = 1  # hypotheses answered, best first; at most beam_size, or any number when sampling
    length_penalty: float = 1.0  # score = sum of log-probabilities / length ** length_penalty
    # When beam_size have finished, the search is done (True), or done if no live one scores better now (False), or if
    # none ever can (never).
    early_stopping: EarlyStopping = False
    max_length: int  # tokens of a hypothesis, its prefix and its end token included
    min_length: int = 0  # tokens before the end token may come
    forced_end: bool = False  # the last token of max_length is the end token, which costs nothing, as Marian has it
    repetition_penalty: float = 1.0  # a repeated token's log-probability is multiplied by this before the choice
    no_repeat_ngram_size: int = 0  # n-grams of this size come once; 0: no such rule
    temperature: float | None = None  # sample from softmax(logits / temperature); None: no sampling
    top_k: int | None = None  # sample among the k most probable
    top_p: float | None = None  # sample among the most probable that together have this probability
    seed: int = 0  # of the sampling

    @property
    def samples(self) -> bool:
        return self.temperature is not None


@dataclass(frozen=True, kw_only=True)
class Generate:
    source: Ids  # without the end token
    options: Options
    prefix: Ids = ()  # the target starts with it
    start: Ids | None = None  # decoded before the prefix and not answered: a language; None: as the bundle has it
    stream: bool = False  # emit NewTokens while decoding
    top_logprobs: int = 0  # most probable tokens recorded at each position; 0: none

    @property
    def rows(self) -> int:
        """The rows of the batch that it may occupy."""
        return self.options.num_hypotheses if self.options.samples else self.options.beam_size

    @property
    def token_budget(self) -> int:
        """The most tokens that it may take, by which the queue is bounded."""
        return len(self.source) + 1 + self.rows * self.options.max_length


@dataclass(frozen=True, kw_only=True)
class NextToken:
    source: Ids
    prefix: Ids = ()
    start: Ids | None = None

    rows = 1
    stream = False

    @property
    def token_budget(self) -> int:
        return len(self.source) + 1 + len(self.prefix) + 1


@dataclass(frozen=True, kw_only=True)
class Score:
    source: Ids
    target: Ids  # without the end token, which is scored too
    start: Ids | None = None

    rows = 1
    stream = False

    @property
    def token_budget(self) -> int:
        return len(self.source) + 1 + len(self.target) + 1


Task = Generate | NextToken | Score


@dataclass(frozen=True)
class Hypothesis:
    ids: Ids  # the prefix included, without the end token
    logprobs: tuple[float, ...]  # of each token, by the model itself; the end token's last, where it came
    score: float  # sum(logprobs) / (start tokens + len(logprobs)) ** length_penalty
    finish_reason: str  # stop: the end token came; length: the limit came; deadline: time was up
    top_logprobs: tuple[TokenLogprobs, ...] = ()  # of each token, where the task asked for them; as long as logprobs


@dataclass(frozen=True)
class Timing:
    """Seconds."""

    queue: float
    encode: float
    decode: float


@dataclass(frozen=True)
class Generated:
    hypotheses: tuple[Hypothesis, ...]  # best first
    timing: Timing


@dataclass(frozen=True)
class Distribution:
    logprobs: Array  # (V,), of every token after the prefix
    prefix_logprobs: tuple[float, ...]  # of each token of the prefix
    timing: Timing


@dataclass(frozen=True)
class Scored:
    logprobs: tuple[float, ...]  # of each target token, and of the end token
    timing: Timing


Result = Generated | Distribution | Scored


@dataclass(frozen=True)
class NewTokens:
    """Tokens of a streamed task that are certain now, those of the prefix included."""

    index: int  # of the task among those submitted together
    ids: Ids
    logprobs: tuple[float, ...]
    top_logprobs: tuple[TokenLogprobs, ...] = ()  # of each token, where the task asked for them


@dataclass(frozen=True)
class Finished:
    """The one outcome of a task."""

    index: int
    answer: Result | Exception  # DeadlineError, CancelledError, NotReadyError, or what went wrong


EventCallback = Callable[[NewTokens | Finished], None]  # called in the engine's thread: quick, and never raising
