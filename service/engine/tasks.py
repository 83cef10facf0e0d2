"""The engine's tasks and their results: token ids in, token ids out. The caller has checked the ranges of options.

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

from attendant.service.engine.search.constraints.constraints import Constraints
from attendant.service.engine.search.constraints.terms import MetTerm

Ids = tuple[int, ...]
Array = np.ndarray[Any, Any]
EarlyStopping = bool | Literal["never"]
ATTENTION_KINDS = ("encoder", "decoder", "cross")
ALIGNMENT_METHODS = ("argmax", "mutual")
TokenLogprobs = tuple[tuple[int, float], ...]  # (token, log-probability) of the most probable tokens, best first


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a target is searched for, or sampled."""

    beam_size: int = 1  # live hypotheses kept at each step; 1 is greedy
    num_hypotheses: int = 1  # hypotheses answered, best first; at most beam_size, or any number when sampling
    length_penalty: float = 1.0  # score = sum of log-probabilities / length ** length_penalty
    # Once beam_size hypotheses have finished, the search ends: at once (True), when no live one scores better at its
    # present length (False), or when no live one can ever score better ("never").
    early_stopping: EarlyStopping = False
    max_length: int  # tokens of a hypothesis, its prefix and its end token included
    min_length: int = 0  # tokens before the end token may come
    forced_end: bool = False  # the token at max_length must be the end token, ranked with weight 0, as in Marian
    repetition_penalty: float = 1.0  # a repeated token's log-probability is multiplied by this before the choice
    no_repeat_ngram_size: int = 0  # no n-gram of this size may occur twice; 0: off
    temperature: float | None = None  # sample from softmax(logits / temperature); None: no sampling
    top_k: int | None = None  # sample among the k most probable tokens
    top_p: float | None = None  # sample among the fewest most probable tokens that together have this probability
    seed: int = 0  # of the random numbers for sampling

    @property
    def samples(self) -> bool:
        return self.temperature is not None


@dataclass(frozen=True, kw_only=True)
class Generate:
    source: Ids  # without the end token
    options: Options
    prefix: Ids = ()  # the target starts with it
    start: Ids | None = None  # decoded before the prefix, not part of the answer, e.g. a language; None: the bundle's
    stream: bool = False  # emit NewTokens while decoding
    top_logprobs: int = 0  # most probable tokens recorded at each position; 0: none
    record: bool = False  # record the entropy at each position, and the tree of a beam search
    constraints: Constraints | None = None  # phrases that must come or must not; None: any target is allowed

    @property
    def rows(self) -> int:
        """The most rows of the batch that it may occupy."""
        return self.options.num_hypotheses if self.options.samples else self.options.beam_size

    @property
    def token_budget(self) -> int:
        """The most tokens that it may process; the queue bounds the sum of these."""
        return len(self.source) + 1 + self.rows * self.options.max_length


@dataclass(frozen=True, kw_only=True)
class NextToken:
    source: Ids
    prefix: Ids = ()
    start: Ids | None = None
    constraints: Constraints | None = None  # forbidden phrases and choices; what may not come has probability 0

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
    average: str = "none"  # over which axes: none, heads, layers or both


@dataclass(frozen=True, kw_only=True)
class AlignmentChoice:
    """How source and target are aligned: by cross-attention weights, averaged over some heads of one decoder layer."""

    layer: int
    heads: Ids
    # argmax: each target token with the source token of its largest weight; mutual: only if the reverse holds too.
    method: str = "argmax"


INCLUDED = (
    "structure",
    "qkv",
    "scores",
    "sums",
    "projected",
    "residual",
    "embeddings",
    "positions",
    "bias",
    "neighbours",
    "plane",
)


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """Parts of the model that are switched off: their output is 0. Sub-layers are named as in explain/anchors.py."""

    heads: tuple[tuple[str, int, int], ...] = ()  # kind of attention, layer, head
    sublayers: tuple[tuple[str, int], ...] = ()  # the output of a sub-layer, which is added to x
    residuals: tuple[tuple[str, int], ...] = ()  # the x that a sub-layer's output is added to
    positions: tuple[str, ...] = ()  # source, target: what is added to embeddings for their positions


@dataclass(frozen=True, kw_only=True)
class Explain:
    search: Generate | Score
    attention: AttentionChoice
    alignment: AlignmentChoice
    alignable: Ids  # positions of the source tokens that stand for text
    max_values: int  # the most values that may be answered
    include: tuple[str, ...] = ()  # of INCLUDED
    ablation: Ablation | None = None  # explain the model without these parts
    # What the search found is the outcome even where it cannot be explained, or not before the deadline: without pairs.
    best_effort: bool = False

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
        """That of the search, plus one pass over the source and the longest target that it can find.

        An ablated model decodes too: a pass for each token.
        """
        longest = self.search.options.max_length if isinstance(self.search, Generate) else len(self.search.target) + 1
        return self.search.token_budget + (len(self.source) + 1 + longest) * (1 if self.ablation is None else 2)


Task = Generate | NextToken | Score | Explain


@dataclass(frozen=True)
class Hypothesis:
    ids: Ids  # the prefix included, without the end token
    logprobs: tuple[float, ...]  # of each token, before penalties; the end token's comes last, if there is one
    score: float  # sum(logprobs) / (start tokens + len(logprobs)) ** length_penalty
    finish_reason: str  # stop: the end token was chosen; length: max_length, or no token allowed; deadline: time was up
    top_logprobs: tuple[TokenLogprobs, ...] = ()  # of each token, where the task asked for them; as long as logprobs
    entropies: tuple[float, ...] = ()  # of the distribution at each position, in nats, if recorded; as long as logprobs
    terms: tuple[MetTerm, ...] = ()  # each term of the task's constraints


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
    logprob: float  # of the token, before penalties
    weight: float  # summed log-probability after penalties, by which candidates are ranked
    score: float  # weight / (start tokens + length) ** length_penalty, by which finished hypotheses are ranked
    state: str  # kept: stays live; finished: by the end token or the limit; pruned: dropped
    hypothesis: int | None = None  # index of the answered hypothesis that ends here, if any


@dataclass(frozen=True)
class Generated:
    hypotheses: tuple[Hypothesis, ...]  # best first
    timing: Timing
    tree: tuple[tuple[BeamNode, ...], ...] | None = None  # the candidates of each step, best first, where recorded
    cut_short: bool = False  # a deadline ended the search: more time could change the answer, even if finished


@dataclass(frozen=True)
class Distribution:
    logprobs: Array  # (V,), of every token after the prefix
    prefix_logprobs: tuple[float, ...]  # of each token of the prefix
    timing: Timing


@dataclass(frozen=True)
class Scored:
    logprobs: tuple[float, ...]  # of each target token, and of the end token
    timing: Timing
    top_logprobs: tuple[TokenLogprobs, ...] = ()  # as in Hypothesis; entropies too
    entropies: tuple[float, ...] = ()


@dataclass(frozen=True)
class AttentionWeights:
    """Those of one kind. A query is a source token, or the decoding step that gives a target token."""

    kind: str
    layers: Ids
    heads: Ids
    values: Array  # (layers, heads, queries, keys); an averaged axis has size 1


@dataclass(frozen=True)
class IncludedValues:
    """Values of one kind that were computed on the way."""

    name: str  # query, key, value, scores, sums, stream, output, tokens, positions
    of: str  # a kind of attention, encoder or decoder, or a side: source or target
    axes: tuple[str, ...]
    values: Array
    places: tuple[str, ...] = ()  # what the first axis counts, where it is not layers
    layers: Ids = ()
    heads: Ids = ()


@dataclass(frozen=True)
class Neighbours:
    side: str  # source or target
    ids: Ids  # the tokens
    nearest: tuple[tuple[tuple[int, float], ...], ...]  # for each: tokens and the cosine of the angle between both


@dataclass(frozen=True)
class Plane:
    """The target vocabulary in the plane in which its embeddings vary most."""

    ids: Ids
    points: Array  # (ids, 2)
    share: float  # of the variance that the plane has


@dataclass(frozen=True)
class Ablated:
    """What the model does without some parts."""

    logprobs: tuple[float, ...]  # of the explained target's tokens, and of the end token where that has one
    entropies: tuple[float, ...]
    top_logprobs: tuple[TokenLogprobs, ...]
    ids: Ids  # what it answers itself, greedily, without the end token
    own_logprobs: tuple[float, ...]  # the end token's last, if there is one
    finish_reason: str  # stop or length


@dataclass(frozen=True)
class Explained:
    found: Generated | Scored
    attention: tuple[AttentionWeights, ...]
    start: Ids  # tokens that the decoder reads before the target: the start token and, e.g., a language
    pairs: tuple[tuple[int, int], ...]  # aligned positions (source, target), in target order
    precision: str  # of the graph that computed the attention weights
    seconds: float  # that this took, including the load of the graph on first use
    included: tuple[IncludedValues, ...] = ()
    neighbours: tuple[Neighbours, ...] = ()
    plane: Plane | None = None
    structure: dict[str, Any] | None = None
    ablated: Ablated | None = None


def unexplained(found: Generated | Scored) -> Explained:
    """The outcome of a best-effort explanation that could not be made."""
    return Explained(found, (), (), (), "", 0.0)


Result = Generated | Distribution | Scored | Explained
Outcome = Result | Exception  # of one task


@dataclass(frozen=True)
class NewTokens:
    """Tokens of a streamed task that no later step will change; those of its prefix are emitted too."""

    index: int  # of the task among those submitted together
    ids: Ids
    logprobs: tuple[float, ...]
    top_logprobs: tuple[TokenLogprobs, ...] = ()  # of each token, where the task asked for them


@dataclass(frozen=True)
class Finished:
    """The one outcome of a task."""

    index: int
    answer: Result | Exception  # DeadlineError, CancelledError, NotReadyError, or what went wrong


EventCallback = Callable[[NewTokens | Finished], None]  # may be called in any thread: must be quick, never raise
