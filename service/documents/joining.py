"""The answers of a document's segments as one answer, with the text that was between them."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attendant.service.documents.document import Document, Segment
from attendant.service.documents.placing import place
from attendant.service.engine.tasks import Explained, Generated, Hypothesis, Ids, Outcome, Timing
from attendant.service.text.tokenizer import Span, Tokenizer


@dataclass(frozen=True)
class SegmentPlace:
    """A segment in the source, and its answer in the target; positions count code points."""

    source: Span
    target: Span
    cut: bool
    aligned: int  # tags and pieces that stand where the alignment puts them
    score: float
    finish_reason: str


@dataclass(frozen=True, kw_only=True)
class JoinedHypothesis(Hypothesis):
    """The tokens of all segments, one after the other; `score` is the sum of theirs."""

    text: str
    segments: tuple[SegmentPlace, ...]


@dataclass(frozen=True)
class PlannedSegment:
    segment: Segment
    starts: tuple[int | None, ...]  # where each source token begins in the segment's text, if that has it


def join(
    document: Document, planned: Sequence[PlannedSegment], outcomes: Sequence[Outcome], tokenizer: Tokenizer
) -> Outcome:
    """One result for the document; if a segment has none, its failure: nothing is left out of an answer."""
    found: list[Generated] = []
    pairs: list[tuple[tuple[int, int], ...]] = []
    for outcome in outcomes:
        result = outcome.found if isinstance(outcome, Explained) else outcome
        if not isinstance(result, Generated):
            return outcome
        found.append(result)
        pairs.append(outcome.pairs if isinstance(outcome, Explained) else ())
    count = max((len(each.hypotheses) for each in found), default=1)
    hypotheses = [
        _joined(
            document,
            planned,
            [each.hypotheses[min(rank, len(each.hypotheses) - 1)] for each in found],
            pairs,
            tokenizer,
        )
        for rank in range(count)
    ]
    phases = [[getattr(each.timing, phase) for each in found] for phase in ("queue", "encode", "decode")]
    timing = Timing(*(max(seconds, default=0.0) for seconds in phases))
    return Generated(tuple(hypotheses), timing, cut_short=any(each.cut_short for each in found))


def _joined(
    document: Document,
    planned: Sequence[PlannedSegment],
    hypotheses: Sequence[Hypothesis],
    pairs: Sequence[tuple[tuple[int, int], ...]],
    tokenizer: Tokenizer,
) -> JoinedHypothesis:
    text: list[str] = []
    places: list[SegmentPlace] = []
    length = 0
    left = iter(zip(planned, hypotheses, pairs, strict=True))
    for part in document.parts:
        if isinstance(part, Segment):
            segment, hypothesis, aligned = next(left)
            answer, moved = answer_of(segment, hypothesis.ids, aligned, tokenizer)
            places.append(
                SegmentPlace(
                    (part.start, part.stop),
                    (length, length + len(answer)),
                    part.cut,
                    moved,
                    hypothesis.score,
                    hypothesis.finish_reason,
                )
            )
        else:
            answer = part
        text.append(answer)
        length += len(answer)
    reasons = {hypothesis.finish_reason for hypothesis in hypotheses}
    return JoinedHypothesis(
        ids=tuple(index for hypothesis in hypotheses for index in hypothesis.ids),
        logprobs=tuple(logprob for hypothesis in hypotheses for logprob in hypothesis.logprobs),
        score=sum(hypothesis.score for hypothesis in hypotheses),
        finish_reason=next((reason for reason in ("deadline", "length") if reason in reasons), "stop"),
        terms=tuple(term for hypothesis in hypotheses for term in hypothesis.terms),
        text="".join(text),
        segments=tuple(places),
    )


def answer_of(
    planned: PlannedSegment, ids: Ids, pairs: Sequence[tuple[int, int]], tokenizer: Tokenizer
) -> tuple[str, int]:
    """A segment's text in the target, with its tags and pieces; and how many of these the alignment placed."""
    segment = planned.segment
    if not segment.nodes:
        return written(segment)(tokenizer.decode(ids)), 0
    text, spans = tokenizer.decode_spans(ids)
    aligned = [(start, target) for source, target in pairs if (start := planned.starts[source]) is not None]
    return place(segment, text, spans, aligned)


def written(segment: Segment) -> Callable[[str], str]:
    """How text of the model is written in the document that the segment is of."""
    return _escape if segment.escaped else str


def _escape(text: str) -> str:
    return html.escape(text, quote=False)
