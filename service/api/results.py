"""What the Python API answers: frozen dataclasses, and how they are made of the engine's results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attendant.service.documents.detection import Detected
    from attendant.service.engine.tasks import Distribution, Ids, Scored
    from attendant.service.requests.schemas import NextTokenRequest
    from attendant.service.requests.served import ServedModel


@dataclass(frozen=True, kw_only=True)
class MetTerm:
    """A term that applied to a text."""

    source: str | None  # the phrase of the source that it is for; None: it is for every text
    target: str  # the form that came; the first one where none did
    met: bool


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part that a text was decoded in; positions count code points, the stop is exclusive."""

    source: tuple[int, int]
    target: tuple[int, int]
    cut: bool  # its sentence was too long for the model, and is cut at its end
    aligned: int  # tags and protected pieces that stand where the alignment puts them
    score: float
    finish_reason: str


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    text: str
    tokens: tuple[str, ...]  # without the end token
    token_texts: tuple[str, ...]  # readable form of each token; bytes that are no whole character as <0xE6>
    score: float  # sum of logprobs / length ** length_penalty, in nats; a language token counts in the length
    logprobs: tuple[float, ...]  # of each token, and of the end token if it was generated, in nats
    finish_reason: str  # stop: the end token was generated; length: max_length was reached; deadline: time was up
    terms_met: tuple[MetTerm, ...] = ()  # of `terms` and `glossary`, those that applied
    segments: tuple[Segment, ...] = ()  # of a text that was split; the score is the sum of theirs


@dataclass(frozen=True, kw_only=True)
class Output:
    """The answer to one text."""

    hypotheses: tuple[Hypothesis, ...]  # best first; samples are not sorted; none where there is an error
    error: Exception | None = None  # why this text has no answer, where others of its list have
    unknown: tuple[str, ...] = ()  # pieces of the text that the vocabulary lacks, read as the unknown token
    detected_language: str | None = None  # of the text, where that was left to be detected
    detected_confidence: float | None = None  # its probability among the model's languages, 0 to 1

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


def streamed_token(event: dict[str, Any]) -> StreamedToken:
    """An event of a streamed answer; text that is of no token has the token "" and the index -1."""
    return StreamedToken(**{"token": "", "logprob": 0.0, "index": -1, **event})


def output_of(
    served: ServedModel, result: Any, unknown: Sequence[str] = (), detected: Detected | None = None
) -> Output:
    from attendant.service.requests.content import output_content

    if isinstance(result, Exception):
        return Output(hypotheses=(), error=result, unknown=tuple(unknown))
    rows = output_content(served, result, True)["hypotheses"]
    return Output(
        unknown=tuple(unknown),
        detected_language=None if detected is None else detected.language,
        detected_confidence=None if detected is None else detected.confidence,
        hypotheses=tuple(
            Hypothesis(
                text=row["text"],
                tokens=tuple(row["tokens"]),
                token_texts=tuple(row.get("token_texts", row["tokens"])),
                score=row["score"],
                logprobs=tuple(row["logprobs"]),
                finish_reason=row["finish_reason"],
                terms_met=tuple(MetTerm(**term) for term in row.get("terms_met", ())),
                segments=tuple(Segment(**each) for each in row.get("segments", ())),
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
