"""What the Python API answers: frozen dataclasses, and how they are made of the engine's results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attendant.service.engine.tasks import Distribution, Ids, Scored
    from attendant.service.requests.schemas import NextTokenRequest
    from attendant.service.requests.served import ServedModel


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    text: str
    tokens: tuple[str, ...]  # without the end token
    token_texts: tuple[str, ...]  # readable form of each token; bytes that are no whole character as <0xE6>
    score: float  # sum of logprobs / length ** length_penalty, in nats; a language token counts in the length
    logprobs: tuple[float, ...]  # of each token, and of the end token if it was generated, in nats
    finish_reason: str  # stop: the end token was generated; length: max_length was reached; deadline: time was up


@dataclass(frozen=True, kw_only=True)
class Output:
    """The answer to one text."""

    hypotheses: tuple[Hypothesis, ...]  # best first; samples are not sorted; none where there is an error
    error: Exception | None = None  # why this text has no answer, where others of its list have
    unknown: tuple[str, ...] = ()  # pieces of the text that the vocabulary lacks, read as the unknown token

    @property
    def text(self) -> str:
        """The text of the first hypothesis; where there is none, the error is raised."""
        if self.error is not None:
            raise self.error
        return self.hypotheses[0].text


@dataclass(frozen=True, kw_only=True)
class TokenProbability:
    id: int  # in the target vocabulary
    token: str
    text: str  # what the token stands for
    probability: float
    logprob: float  # -inf where the probability is 0


@dataclass(frozen=True, kw_only=True)
class NextToken:
    tokens: tuple[TokenProbability, ...]  # most probable first
    entropy: float  # of the distribution over the whole vocabulary, in nats
    prefix_logprob: float  # of the prefix, in nats


@dataclass(frozen=True, kw_only=True)
class ScoredToken:
    token: str
    text: str  # what the token stands for
    logprob: float  # given the source and the tokens before it, in nats


@dataclass(frozen=True, kw_only=True)
class Score:
    logprob: float  # of the whole target, end token included, in nats
    tokens: tuple[ScoredToken, ...]  # the end token last


@dataclass(frozen=True, kw_only=True)
class StreamedToken:
    token: str
    text: str  # what it adds to the text; empty until the bytes of a character are complete
    logprob: float  # in nats
    index: int  # its place in the hypothesis, from 0


def output_of(served: ServedModel, result: Any, unknown: Sequence[str] = ()) -> Output:
    from attendant.service.requests.content import output_content

    if isinstance(result, Exception):
        return Output(hypotheses=(), error=result, unknown=tuple(unknown))
    rows = output_content(served, result, True)["hypotheses"]
    return Output(
        unknown=tuple(unknown),
        hypotheses=tuple(
            Hypothesis(
                text=row["text"],
                tokens=tuple(row["tokens"]),
                token_texts=tuple(row.get("token_texts", row["tokens"])),
                score=row["score"],
                logprobs=tuple(row["logprobs"]),
                finish_reason=row["finish_reason"],
            )
            for row in rows
        ),
    )


def score_of(served: ServedModel, target: Ids, result: Scored) -> Score:
    from attendant.service.requests.content import score_content

    found = score_content(served, target, result)
    tokens = tuple(ScoredToken(token=row["token"], text=row["text"], logprob=row["logprob"]) for row in found["tokens"])
    return Score(logprob=found["logprob"], tokens=tokens)


def next_token_of(served: ServedModel, request: NextTokenRequest, result: Distribution) -> NextToken:
    from attendant.service.requests.content import next_token_content

    found = next_token_content(served, result, request.top_k, request.temperature)
    tokens = tuple(
        TokenProbability(**{name: row[name] for name in ("id", "token", "text", "probability", "logprob")})
        for row in found["tokens"]
    )
    return NextToken(tokens=tokens, entropy=found["entropy"], prefix_logprob=found["prefix_logprob"])
