"""The answer of POST /v1/explain, from what the engine found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import cast

from service.engine import attention
from service.engine.tasks import BeamNode, Explain, Explained, Generated, Hypothesis, Score, Scored
from service.http.explain_schemas import ExplainRequest
from service.requests.content import Json, encode, hypothesis_content, milliseconds
from service.requests.served import ServedModel
from service.tokenizer import Span, Tokenizer

# A word is one character of a script written without spaces, or a run of other characters that are no space.
IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
WORD = re.compile(rf"[{IDEOGRAPHS}]|[^\s{IDEOGRAPHS}]+")
AXES = {"encoder": ("source", "source"), "decoder": ("target", "decoder_inputs"), "cross": ("target", "source")}


@dataclass(frozen=True)
class Plan:
    task: Explain
    source_spans: list[Span | None]  # the end token's included
    target_spans: list[Span | None] | None  # of a target given as text, without the end token
    chosen_by: str  # who chose the alignment: request, bundle or default


def build(served: ServedModel, request: ExplainRequest, plan: Plan, result: Explained) -> tuple[bytes, Json]:
    """The answer as JSON, and as a dict without attention, whose weights are encoded straight to JSON."""
    content = explain_content(served, request, plan, result)
    parts = []
    for found in result.attention:
        rows, columns = AXES[found.kind]
        shape = list(found.values.shape)
        about = {"kind": found.kind, "layers": found.layers, "heads": found.heads, "rows": rows, "columns": columns}
        values = attention.encode_values(found.values, request.encoding)
        parts.append(encode({**about, "shape": shape})[:-1] + b',"values":' + values + b"}")
    return encode(content)[:-1] + b',"attention":[' + b",".join(parts) + b"]}", content


def explain_content(served: ServedModel, request: ExplainRequest, plan: Plan, result: Explained) -> Json:
    """All but the attention weights."""
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

    def steps(self) -> list[Json]:
        path = self._path
        return [
            {
                **_token(self.tokenizer, index),
                "logprob": logprob,
                "entropy": entropy,
                "alternatives": [{**_token(self.tokenizer, other), "logprob": found} for other, found in top],
            }
            for index, logprob, entropy, top in zip(
                self.ids, path.logprobs, path.entropies, path.top_logprobs, strict=True
            )
        ]


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
    """Pairs of words with aligned tokens, each pair once, in the target's order."""
    source_words, target_words = ([match.span() for match in WORD.finditer(text)] for text in (source, target))
    found = {
        (theirs, mine)
        for place, other in pairs
        for mine in _touched(source_words, source_spans[place])
        for theirs in _touched(target_words, target_spans[other])
    }
    return [
        {"source": {"start": mine[0], "end": mine[1]}, "target": {"start": theirs[0], "end": theirs[1]}}
        for theirs, mine in sorted(found)
    ]


def _touched(words: Sequence[Span], span: Span | None) -> list[Span]:
    """The words that share a character with a token."""
    return [] if span is None else [word for word in words if word[0] < span[1] and span[0] < word[1]]


def _tree(tokenizer: Tokenizer, found: Generated | Scored) -> list[list[Json]] | None:
    if not isinstance(found, Generated) or found.tree is None:
        return None
    return [[_node(tokenizer, node) for node in nodes] for nodes in found.tree]


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
