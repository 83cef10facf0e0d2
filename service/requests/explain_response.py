"""The answer of POST /v1/explain, from what the engine found."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import cast

from attendant.service.engine.explain import attention
from attendant.service.engine.tasks import (
    Ablated,
    BeamNode,
    Explain,
    Explained,
    Generated,
    Hypothesis,
    Neighbours,
    Plane,
    Score,
    Scored,
)
from attendant.service.requests.content import (
    Check,
    Json,
    encode,
    encode_long,
    hypothesis_content,
    milliseconds,
    no_check,
)
from attendant.service.requests.explain_plan import ExplainPlan
from attendant.service.requests.explain_schemas import ExplainRequest
from attendant.service.requests.served import ServedModel
from attendant.service.text.tokenizer import Span, Tokenizer

# A word is one character of a script written without spaces, or a run of other characters that are no space.
IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
WORD = re.compile(rf"[{IDEOGRAPHS}]|[^\s{IDEOGRAPHS}]+")
AXES = {"encoder": ("source", "source"), "decoder": ("target", "decoder_inputs"), "cross": ("target", "source")}


def build(
    served: ServedModel, request: ExplainRequest, plan: ExplainPlan, result: Explained, check: Check = no_check
) -> tuple[list[bytes], Json]:
    """The answer as JSON, in parts, and as a dict without attention, whose weights are encoded straight to JSON."""
    content = explain_content(served, request, plan, result)
    *parts, end = encode_long(content, check)
    parts.append(b',"attention":[')
    for place, found in enumerate(result.attention):
        rows, columns = AXES[found.kind]
        shape = list(found.values.shape)
        about = {"kind": found.kind, "layers": found.layers, "heads": found.heads, "rows": rows, "columns": columns}
        parts.append((b"," if place else b"") + encode({**about, "shape": shape})[:-1] + b',"values":')
        parts += attention.encode_values(found.values, request.encoding, check)
        parts.append(b"}")
    parts.append(b'],"included":[')
    for place, seen in enumerate(result.included):
        about = {name: getattr(seen, name) for name in ("name", "of", "axes", "places", "layers", "heads")}
        shape = list(seen.values.shape)
        parts.append((b"," if place else b"") + encode({**about, "shape": shape})[:-1] + b',"values":')
        parts += attention.encode_values(seen.values, "json" if request.encoding == "json" else "float16", check)
        parts.append(b"}")
    return [*parts, b"]", end], content


def explain_content(served: ServedModel, request: ExplainRequest, plan: ExplainPlan, result: Explained) -> Json:
    """All but the attention weights; steps and tree are iterators, so that they are never held as objects."""
    found, source = result.found, served.engine.source_tokenizer
    given = None if plan.target_spans is None else request.target
    target = Target(served.engine.target_tokenizer, plan.task, result, served.end, given, plan.target_spans)
    return {
        "model": served.name,
        "source": {
            "text": request.source,
            "tokens": _tokens(source, (*plan.task.source, served.end), plan.source_spans),
        },
        "target": {"text": target.text, "tokens": _tokens(target.tokenizer, target.ids, target.spans)},
        "decoder_inputs": target.decoder_inputs(result.start),
        "hypotheses": (
            [hypothesis_content(served, one, True) for one in found.hypotheses]
            if isinstance(found, Generated)
            else None
        ),
        "steps": target.steps(),
        "neighbours": [_neighbours(served, each) for each in result.neighbours] or None,
        "plane": None if result.plane is None else _plane(target.tokenizer, result.plane),
        "structure": result.structure,
        "ablated": None if result.ablated is None else _ablated(target, result.ablated),
        "encoding": request.encoding,
        "attention_precision": result.precision,
        "alignment": {
            **asdict(plan.task.alignment),
            "chosen_by": plan.chosen_by,
            "pairs": " ".join(f"{place}-{other}" for place, other in result.pairs),
            "words": word_pairs(request.source, target.text, plan.source_spans, target.spans, result.pairs),
        },
        "tree": _tree(target.tokenizer, found),
        "usage": {
            "source_tokens": len(plan.task.source),
            "target_tokens": (
                sum(len(one.logprobs) for one in found.hypotheses)
                if isinstance(found, Generated)
                else len(found.logprobs)
            ),
        },
        "timing": {
            "queue_ms": milliseconds(found.timing.queue),
            "encode_ms": milliseconds(found.timing.encode),
            "decode_ms": milliseconds(found.timing.decode),
            "attention_ms": milliseconds(result.seconds),
        },
    }


class Target:
    """The target that is explained: the one given, or the first hypothesis."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        task: Explain,
        result: Explained,
        end: int,
        given: str | None,
        given_spans: Sequence[Span | None] | None,
    ) -> None:
        found = result.found
        self.tokenizer = tokenizer
        self._path: Hypothesis | Scored = found.hypotheses[0] if isinstance(found, Generated) else found
        ids = self._path.ids if isinstance(self._path, Hypothesis) else cast(Score, task.search).target
        self.text, spans = tokenizer.decode_spans(ids)
        self.spans: list[Span | None] = [*spans]
        if given is not None and given_spans is not None:
            self.text, self.spans = given, [*given_spans]
        ended = len(self._path.logprobs) > len(ids)
        self.ids = (*ids, end) if ended else ids
        self.spans += [None] * ended

    def decoder_inputs(self, start: Sequence[int]) -> list[Json]:
        return [
            {**_token(self.tokenizer, index), "index": place if place >= 0 else None}
            for place, index in enumerate((*start, *self.ids[:-1]), start=-len(start))
        ]

    def steps(self, path: Hypothesis | Scored | Ablated | None = None) -> Iterator[Json]:
        """Those of the search, or of another model's way through the same target."""
        path = path or self._path
        return (
            {
                **_token(self.tokenizer, index),
                "logprob": logprob,
                "entropy": entropy,
                "alternatives": [{**_token(self.tokenizer, other), "logprob": found} for other, found in top],
            }
            for index, logprob, entropy, top in zip(
                self.ids, path.logprobs, path.entropies, path.top_logprobs, strict=True
            )
        )


def _ablated(target: Target, found: Ablated) -> Json:
    return {
        "text": target.tokenizer.decode(found.ids),
        "tokens": [target.tokenizer.token(index) for index in found.ids],
        "logprobs": found.own_logprobs,
        "finish_reason": found.finish_reason,
        "steps": [*target.steps(found)],
    }


def _neighbours(served: ServedModel, found: Neighbours) -> Json:
    tokenizer = served.engine.source_tokenizer if found.side == "source" else served.engine.target_tokenizer
    return {
        "side": found.side,
        "tokens": [
            {
                **_token(tokenizer, index),
                "nearest": [{**_token(tokenizer, other), "cosine": round(cosine, 4)} for other, cosine in nearest],
            }
            for index, nearest in zip(found.ids, found.nearest, strict=True)
        ],
    }


def _plane(tokenizer: Tokenizer, found: Plane) -> Json:
    points = zip(found.ids, found.points.tolist(), strict=True)
    return {
        "share": round(found.share, 4),
        "points": [{**_token(tokenizer, index), "x": round(x, 4), "y": round(y, 4)} for index, (x, y) in points],
    }


def _token(tokenizer: Tokenizer, index: int) -> Json:
    return {"id": index, "token": tokenizer.token(index), "text": tokenizer.text(index)}


def _tokens(tokenizer: Tokenizer, ids: Sequence[int], spans: Sequence[Span | None]) -> list[Json]:
    return [
        {**_token(tokenizer, index), "start": span and span[0], "end": span and span[1]}
        for index, span in zip(ids, spans, strict=True)
    ]


def word_pairs(
    source: str,
    target: str,
    source_spans: Sequence[Span | None],
    target_spans: Sequence[Span | None],
    pairs: Sequence[tuple[int, int]],
) -> list[Json]:
    """Pairs of words with aligned tokens, each pair once, in the target's order.

    Several words that one token touches count as one, so there are at most as many pairs as aligned tokens.
    """
    source_words, target_words = Words(source), Words(target)
    found = {
        (theirs, mine)
        for place, other in pairs
        if (mine := source_words.touched(source_spans[place])) and (theirs := target_words.touched(target_spans[other]))
    }
    return [
        {"source": {"start": mine[0], "end": mine[1]}, "target": {"start": theirs[0], "end": theirs[1]}}
        for theirs, mine in sorted(found)
    ]


class Words:
    """The words of a text."""

    def __init__(self, text: str) -> None:
        spans = [match.span() for match in WORD.finditer(text)]
        self._starts, self._stops = [start for start, _ in spans], [stop for _, stop in spans]

    def touched(self, span: Span | None) -> Span | None:
        """From the first to the last word that shares a character with a token; None if there is none."""
        if span is None:
            return None
        first = bisect_right(self._stops, span[0])  # the first that ends after the token's start
        last = bisect_left(self._starts, span[1]) - 1  # the last that starts before the token's end
        return (self._starts[first], self._stops[last]) if first <= last else None


def _tree(tokenizer: Tokenizer, found: Generated | Scored) -> Iterator[list[Json]] | None:
    if not isinstance(found, Generated) or found.tree is None:
        return None
    return ([_node(tokenizer, node) for node in nodes] for nodes in found.tree)


def _node(tokenizer: Tokenizer, node: BeamNode) -> Json:
    return {
        "node": node.number,
        "parent": node.parent,
        **_token(tokenizer, node.token),
        "logprob": node.logprob,
        "sum": node.weight,
        "score": node.score,
        "state": node.state,
        "hypothesis": node.hypothesis,
    }
