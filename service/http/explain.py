"""POST /v1/explain: what the model did with one source, from its tokens to its attention."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from fastapi import APIRouter
from starlette.responses import Response

from service.engine import attention
from service.engine.tasks import (
    AlignmentChoice,
    AttentionChoice,
    BeamNode,
    Explain,
    Explained,
    Generate,
    Generated,
    Score,
    Scored,
)
from service.errors import NotFoundError
from service.http.context import Context
from service.http.explain_schemas import ExplainRequest, ExplainResponse
from service.http.inputs import encode_source, encode_target
from service.http.models import ServedModel, plan_with
from service.http.native import POST_ERRORS
from service.http.planning import Problem, deadline, plan_generate, refuse
from service.http.responses import Json, encode, hypothesis_content, milliseconds
from service.http.route import DirectRoute
from service.http.schemas import ErrorResponse, GenerateRequest
from service.http.submission import run_tasks
from service.settings import Settings
from service.tokenizer import Span

OFF = "Explaining is switched off, or this model is too large for it here."
# A character of a script that is written without spaces, or a run of anything else that is no space.
IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
WORD = re.compile(rf"[{IDEOGRAPHS}]|[^\s{IDEOGRAPHS}]+")
NOT_OF_THE_SEARCH = ("inputs", "logprobs", "stream", "source_language", "target_language", "timeout_ms")
SEARCH_OPTIONS = [name for name in ExplainRequest.model_fields if name in GenerateRequest.model_fields]

router = APIRouter(route_class=DirectRoute)


@dataclass(frozen=True)
class Plan:
    task: Explain
    source_spans: list[Span | None]  # the end token's included
    target_spans: list[Span | None] | None  # of a target given as text, without the end token
    chosen_by: str  # of the alignment


@router.post(
    "/v1/explain",
    response_model=ExplainResponse,
    responses={**POST_ERRORS, 404: {"model": ErrorResponse, "description": OFF}},
)
async def explain(request: ExplainRequest, context: Context) -> Response:
    """Tokens, attention, alignment, steps and the beam's tree of one source, and of a given target or the answer."""
    settings, record = context.settings, context.record
    if not settings.explain:
        raise NotFoundError("/v1/explain is switched off on this server; it is started with --explain true.")
    characters = len(request.source) + len(request.target or "")
    served, plan = await plan_with(context.models, characters, lambda served: plan_explain(request, served, settings))
    until = deadline(request.timeout_ms, record.arrival, settings)
    (outcome,) = await run_tasks(served.engine, [plan.task], until, context.receive, "source")
    body, content = await asyncio.to_thread(build, served, request, plan, cast(Explained, outcome))
    record.facts |= {**content["usage"], **content["timing"]}
    if settings.log_texts:
        record.facts |= {"source": request.source, "target": content["target"]["text"]}
    return Response(body, media_type="application/json")


def plan_explain(request: ExplainRequest, served: ServedModel, settings: Settings) -> Plan:
    refuse(_problems(request, served))
    languages = served.languages.choose(request.source_language, request.target_language)
    given = request.target_tokens if request.target is None else request.target
    if given is None:
        search: Generate | Score = _plan_search(request, served, settings)
    else:
        source = encode_source(served, request.source, "source", languages.source_prefix)
        target = encode_target(served, given, "target" if request.target is not None else "target_tokens")
        search = Score(
            source=source,
            target=target,
            start=languages.start,
            top_logprobs=min(request.alternatives, len(served.tokens)),
            record=True,
        )
    tokenizer, prefix = served.engine.source_tokenizer, languages.source_prefix
    spans = [*[None] * len(prefix or ()), *tokenizer.spans(request.source, bare=prefix is not None), None]
    alignment, chosen_by = _alignment(request, served)
    task = Explain(
        search=search,
        attention=AttentionChoice(
            kinds=tuple(dict.fromkeys(request.attention)),
            layers=None if request.layers is None else tuple(request.layers),
            heads=None if request.heads is None else tuple(request.heads),
            average=request.average,
        ),
        alignment=alignment,
        alignable=tuple(place for place, span in enumerate(spans) if span is not None),
        max_values=settings.max_explain_values,
    )
    _refuse_size(task, served)
    target_spans = None if not request.target else served.engine.target_tokenizer.spans(request.target)
    return Plan(task, spans, target_spans, chosen_by)


def _plan_search(request: ExplainRequest, served: ServedModel, settings: Settings) -> Generate:
    given = request.model_fields_set & set(SEARCH_OPTIONS)
    values = {name: getattr(request, name) for name in SEARCH_OPTIONS}
    native = GenerateRequest.model_construct(given, inputs=[request.source], **values)
    (task,) = plan_generate(native, served, settings, "source")
    return replace(task, record=True, top_logprobs=min(request.alternatives, len(served.tokens)))


def _problems(request: ExplainRequest, served: ServedModel) -> list[Problem]:
    problems: list[Problem] = []
    given = next((name for name in ("target", "target_tokens") if getattr(request, name) is not None), None)
    if request.target is not None and request.target_tokens is not None:
        problems.append(("target_tokens", "target and target_tokens are both given; leave one out."))
    if given is not None:
        for name in sorted(request.model_fields_set & set(SEARCH_OPTIONS) - set(NOT_OF_THE_SEARCH)):
            problems.append((name, f"{name} is of a search, and {given} is given, so there is none; leave one out."))
    sizes = served.description.sizes
    for kind in dict.fromkeys(request.attention):
        problems += _out_of_range("layers", request.layers, attention.layers_of(kind, sizes), f" of the {kind}")
    problems += _out_of_range("heads", request.heads, sizes.heads)
    layer = request.alignment_layer
    problems += _out_of_range("alignment_layer", None if layer is None else [layer], sizes.decoder_layers)
    problems += _out_of_range("alignment_heads", request.alignment_heads, sizes.heads)
    return problems


def _out_of_range(field: str, found: Sequence[int] | None, count: int, of: str = "") -> list[Problem]:
    wrong = [place for place in found or () if place >= count]
    if not wrong:
        return []
    return [(field, f"{field} takes whole numbers from 0 to {count - 1}{of} with this model, not {wrong[0]}.")]


def _alignment(request: ExplainRequest, served: ServedModel) -> tuple[AlignmentChoice, str]:
    """What to align by, and who chose it."""
    own = served.description.alignment
    layer, heads, method = request.alignment_layer, request.alignment_heads, request.alignment_method
    if layer is None and heads is None and method is None:
        return own, "bundle" if served.description.alignment_chosen else "default"
    every = tuple(range(served.description.sizes.heads))
    chosen = AlignmentChoice(
        layer=own.layer if layer is None else layer,
        heads=tuple(heads) if heads is not None else own.heads if layer is None else every,
        method=method or own.method,
    )
    return chosen, "request"


def _refuse_size(task: Explain, served: ServedModel) -> None:
    """What is too much already by what is known before the search: a given target, or one of a single token."""
    steps = len(task.search.target) + 1 if isinstance(task.search, Score) else 1
    source = len(task.source) + 1
    count = attention.count_values(task.attention, served.description.sizes, source, steps, steps)
    attention.refuse_values(count, task.max_values)


def build(served: ServedModel, request: ExplainRequest, plan: Plan, result: Explained) -> tuple[bytes, Json]:
    """The answer as JSON, and as a table but for attention, whose numbers are written straight to JSON."""
    content = explain_content(served, request, plan, result)
    parts = []
    for found in result.attention:
        rows, columns = {
            "encoder": ("source", "source"), "decoder": ("target", "decoder_inputs"), "cross": ("target", "source"),
        }[found.kind]  # fmt: skip
        shape = list(found.values.shape)
        about = {"kind": found.kind, "layers": found.layers, "heads": found.heads, "rows": rows, "columns": columns}
        values = attention.encode_values(found.values, request.encoding)
        parts.append(encode({**about, "shape": shape})[:-1] + b',"values":' + values + b"}")
    return encode(content)[:-1] + b',"attention":[' + b",".join(parts) + b"]}", content


def explain_content(served: ServedModel, request: ExplainRequest, plan: Plan, result: Explained) -> Json:
    """All but the attention weights."""
    task, found = plan.task, result.found
    path = found.hypotheses[0] if isinstance(found, Generated) else found
    ids = found.hypotheses[0].ids if isinstance(found, Generated) else cast(Score, task.search).target
    target, end = served.engine.target_tokenizer, served.end
    text, spans = target.decode_spans(ids)
    target_spans: Sequence[Span | None] = spans
    if plan.target_spans is not None and request.target is not None:
        text, target_spans = request.target, plan.target_spans
    steps = (*ids, *[end] * (len(path.logprobs) - len(ids)))
    source_names = [served.engine.source_tokenizer.token(index) for index in (*task.source, end)]
    return {
        "model": served.name,
        "source": {
            "text": request.source,
            "tokens": _tokens((*task.source, end), source_names, plan.source_spans),
        },
        "target": {
            "text": text,
            "tokens": _tokens(steps, [served.tokens[i] for i in steps], [*target_spans, None][: len(steps)]),
        },
        "decoder_inputs": _decoder_inputs(served, result.start, steps[:-1]),
        "hypotheses": [hypothesis_content(served, one, True) for one in found.hypotheses]
        if isinstance(found, Generated)
        else None,
        "steps": [
            {
                "id": index,
                "token": served.tokens[index],
                "logprob": path.logprobs[place],
                "entropy": path.entropies[place],
                "alternatives": [
                    {"id": other, "token": served.tokens[other], "logprob": logprob}
                    for other, logprob in path.top_logprobs[place]
                ],
            }
            for place, index in enumerate(steps)
        ],
        "encoding": request.encoding,
        "attention_precision": result.precision,
        "alignment": {
            "layer": task.alignment.layer,
            "heads": task.alignment.heads,
            "method": task.alignment.method,
            "chosen_by": plan.chosen_by,
            "pairs": " ".join(f"{source}-{target}" for source, target in result.pairs),
            "words": _word_pairs(request.source, text, plan.source_spans, target_spans, result.pairs),
        },
        "tree": _tree(served, task.search, found),
        "usage": {
            "source_tokens": len(task.source),
            "target_tokens": sum(len(one.logprobs) for one in found.hypotheses)
            if isinstance(found, Generated)
            else len(steps),
        },
        "timing": {
            "queue_ms": milliseconds(found.timing.queue),
            "encode_ms": milliseconds(found.timing.encode),
            "decode_ms": milliseconds(found.timing.decode),
            "attention_ms": milliseconds(result.seconds),
        },
    }


def _tokens(ids: Sequence[int], names: Sequence[str], spans: Sequence[Span | None]) -> list[Json]:
    return [
        {"id": index, "token": name, "start": span and span[0], "end": span and span[1]}
        for index, name, span in zip(ids, names, spans, strict=True)
    ]


def _decoder_inputs(served: ServedModel, start: Sequence[int], target: Sequence[int]) -> list[Json]:
    return [
        {"id": index, "token": served.tokens[index], "index": place if place >= 0 else None}
        for place, index in enumerate((*start, *target), start=-len(start))
    ]


def _word_pairs(
    source: str,
    target: str,
    source_spans: Sequence[Span | None],
    target_spans: Sequence[Span | None],
    pairs: Sequence[tuple[int, int]],
) -> list[Json]:
    """Words that have aligned tokens, each pair once, by the target's order."""
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


def _tree(served: ServedModel, search: Generate | Score, found: Generated | Scored) -> list[list[Json]] | None:
    if not isinstance(found, Generated) or found.tree is None or not isinstance(search, Generate):
        return None
    penalty = search.options.length_penalty
    return [
        [_node(served, node, (len(search.prefix) + step) ** penalty) for node in nodes]
        for step, nodes in enumerate(found.tree, start=1)
    ]


def _node(served: ServedModel, node: BeamNode, divisor: float) -> Json:
    return {
        "node": node.number,
        "parent": node.parent,
        "id": node.token,
        "token": served.tokens[node.token],
        "logprob": node.logprob,
        "sum": node.weight,
        "score": node.weight / divisor,
        "state": node.state,
        "hypothesis": node.hypothesis,
    }
