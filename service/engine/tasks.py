"""What the engine is asked for, and what it answers: ids in, ids out. Whoever asks has checked the ranges.

Generate      the best targets of a source
NextToken     the distribution after a prefix
Score         the log-probabilities of a given target
Explain       a Generate or a Score, and the attention weights of what it found
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Ids = tuple[int, ...]
Array = np.ndarray[Any, Any]
EarlyStopping = bool | Literal["never"]
ATTENTION_KINDS = ("encoder", "decoder", "cross")
ALIGNMENT_METHODS = ("argmax", "mutual")
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
    record: bool = False  # record the entropy at each position, and the tree of a beam search

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
    top_logprobs: int = 0
    record: bool = False

    rows = 1
    stream = False

    @property
    def token_budget(self) -> int:
        return len(self.source) + 1 + len(self.target) + 1


@dataclass(frozen=True, kw_only=True)
class AttentionChoice:
    """Which attention weights are answered."""

    kinds: tuple[str, ...]  # of ATTENTION_KINDS
    layers: Ids | None = None  # None: all
    heads: Ids | None = None
    average: str = "none"  # or over heads, layers, both


@dataclass(frozen=True, kw_only=True)
class AlignmentChoice:
    """Which cross-attention weights source and target are aligned by: the mean of some heads of a decoder layer."""

    layer: int
    heads: Ids
    method: str = "argmax"  # each target token to its largest weight; mutual: only where that is also the source's


@dataclass(frozen=True, kw_only=True)
class Explain:
    search: Generate | Score
    attention: AttentionChoice
    alignment: AlignmentChoice
    alignable: Ids  # positions of the source tokens that stand for text
    max_values: int  # attention weights answered

    stream = False

    @property
    def source(self) -> Ids:
        return self.search.source

    @property
    def start(self) -> Ids | None:
        return self.search.start

    @property
    def rows(self) -> int:
        return self.search.rows

    @property
    def token_budget(self) -> int:
        """Of the search, and of a pass over the source and the longest target that it can find."""
        longest = self.search.options.max_length if isinstance(self.search, Generate) else len(self.search.target) + 1
        return self.search.token_budget + len(self.source) + 1 + longest


Task = Generate | NextToken | Score | Explain


@dataclass(frozen=True)
class Hypothesis:
    ids: Ids  # the prefix included, without the end token
    logprobs: tuple[float, ...]  # of each token, by the model itself; the end token's last, where it came
    score: float  # sum(logprobs) / (start tokens + len(logprobs)) ** length_penalty
    finish_reason: str  # stop: the end token came; length: the limit came; deadline: time was up
    top_logprobs: tuple[TokenLogprobs, ...] = ()  # of each token, where the task asked for them; as long as logprobs
    entropies: tuple[float, ...] = ()  # of the distribution that each token is of, in nats; likewise


@dataclass(frozen=True)
class Timing:
    """Seconds."""

    queue: float
    encode: float
    decode: float


@dataclass(frozen=True)
class BeamNode:
    """A candidate of a step of a beam search: a hypothesis extended by a token."""

    number: int  # from 1; 0 is the root, which is the prefix
    parent: int  # the number of the hypothesis that it extends
    token: int
    logprob: float  # of the token, by the model itself
    weight: float  # summed log-probability after penalties, by which candidates are ranked
    score: float  # the same divided as a hypothesis's score is, by which those that finished are ranked
    state: str  # kept: extended further; finished: by the end token or the limit; pruned
    hypothesis: int | None = None  # its place among those answered


@dataclass(frozen=True)
class Generated:
    hypotheses: tuple[Hypothesis, ...]  # best first
    timing: Timing
    tree: tuple[tuple[BeamNode, ...], ...] | None = None  # the candidates of each step, best first, where recorded
    cut_short: bool = False  # a deadline ended the search: more time could give another answer, though these had ended


@dataclass(frozen=True)
class Distribution:
    logprobs: Array  # (V,), of every token after the prefix
    prefix_logprobs: tuple[float, ...]  # of each token of the prefix
    timing: Timing


@dataclass(frozen=True)
class Scored:
    logprobs: tuple[float, ...]  # of each target token, and of the end token
    timing: Timing
    top_logprobs: tuple[TokenLogprobs, ...] = ()  # as of a Hypothesis
    entropies: tuple[float, ...] = ()


@dataclass(frozen=True)
class AttentionWeights:
    """Of one kind. A row is the query: a source token, or the step that gives a target token."""

    kind: str
    layers: Ids
    heads: Ids
    values: Array  # (layers, heads, queries, keys); 1 in place of what was averaged over


@dataclass(frozen=True)
class Explained:
    found: Generated | Scored
    attention: tuple[AttentionWeights, ...]
    start: Ids  # what the decoder read before the target: the start token and a language, say
    pairs: tuple[tuple[int, int], ...]  # aligned positions, (source, target), by target
    precision: str  # of the graph that computed the attention weights
    seconds: float  # that it took


Result = Generated | Distribution | Scored | Explained
Outcome = Result | Exception  # of one task


@dataclass(frozen=True)
class NewTokens:
    """Newly agreed tokens of a streamed task, those of the prefix included."""

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
