"""POST /v1/explain: what the model did with one source, from its tokens to its attention."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from fastapi import APIRouter
from starlette.responses import Response

from service.engine import attention
from service.engine.tasks import (
    AlignmentChoice,
    AttentionChoice,
    Explain,
    Explained,
    Generate,
    Score,
)
from service.errors import NotFoundError
from service.http.context import Context
from service.http.explain_response import Plan, build
from service.http.explain_schemas import ExplainRequest, ExplainResponse
from service.http.native import POST_ERRORS
from service.http.route import DirectRoute
from service.http.submission import run_tasks
from service.requests.inputs import encode_source, encode_target
from service.requests.planning import Problem, deadline, plan_generate, refuse
from service.requests.schemas import ErrorResponse, GenerateRequest
from service.requests.served import ServedModel
from service.settings import Settings

OFF = "There is no model of this name, explaining is switched off, or the model is too large for it here."
WITH_A_TARGET = {"source_language", "target_language", "allow_unknown", "timeout_ms", "model"}
SEARCH_OPTIONS = [name for name in ExplainRequest.model_fields if name in GenerateRequest.model_fields]

router = APIRouter(route_class=DirectRoute)


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
    until = deadline(request.timeout_ms, record.arrival, settings)
    served, plan = await context.plan(
        request.model, characters, until, lambda served: plan_explain(request, served, settings)
    )
    (outcome,) = await run_tasks(served.engine, [plan.task], until, context.receive, "source")
    body, content = await asyncio.to_thread(build, served, request, plan, cast(Explained, outcome))
    record.facts |= {**content["usage"], **content["timing"]}
    if settings.log_texts:
        record.facts |= {"source": request.source, "target": content["target"]["text"]}
    return Response(body + b"\n", media_type="application/json")


def plan_explain(request: ExplainRequest, served: ServedModel, settings: Settings) -> Plan:
    refuse(_problems(request, served))
    languages = served.languages.choose(request.source_language, request.target_language)
    given = request.target_tokens if request.target is None else request.target
    if given is None:
        search: Generate | Score = _plan_search(request, served, settings)
    else:
        unknown, field = request.allow_unknown, "target_tokens" if request.target is None else "target"
        source = encode_source(served, request.source, "source", languages.source_prefix, unknown)
        target = encode_target(served, given, field, allow_unknown=unknown)
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
        for name in sorted(request.model_fields_set & set(SEARCH_OPTIONS) - WITH_A_TARGET):
            problems.append((name, f"{name} is of a search, and {given} is given, so there is none; leave one out."))
    sizes = served.description.sizes
    for kind in dict.fromkeys(request.attention):
        problems += _out_of_range("layers", request.layers, attention.layers_of(kind, sizes), f" of {kind} attention")
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
    """The layer, heads and method to align by, and who chose them: request, bundle or default."""
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
    """Refuse too many attention weights before the search: those of the given target, else of a target of one token."""
    steps = len(task.search.target) + 1 if isinstance(task.search, Score) else 1
    source = len(task.source) + 1
    count = attention.count_values(task.attention, served.description.sizes, source, steps, steps)
    attention.check_value_count(count, task.max_values)
