"""POST /v1/explain: what the model did with one source, from its tokens to its attention."""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter
from starlette.responses import Response

from attendant.service.engine.tasks import Explained
from attendant.service.errors import NotFoundError
from attendant.service.http.context import Context
from attendant.service.http.endpoints.native import POST_ERRORS
from attendant.service.http.guard.policy import Access, policy
from attendant.service.http.responses import LongResponse
from attendant.service.http.route import DirectRoute
from attendant.service.requests.explain_plan import explanation_bytes, plan_explain
from attendant.service.requests.explain_response import build
from attendant.service.requests.explain_schemas import ExplainRequest, ExplainResponse
from attendant.service.requests.planning import deadline
from attendant.service.requests.schemas import ErrorResponse

OFF = "There is no model of this name, explaining is switched off, or the model is too large for it here."

router = APIRouter(route_class=DirectRoute)


@router.post(
    "/v1/explain",
    response_model=ExplainResponse,
    responses={**POST_ERRORS, 404: {"model": ErrorResponse, "description": OFF}},
)
@policy(Access.API_KEY, label="/v1/explain", names_model=True)
async def explain(request: ExplainRequest, context: Context) -> Response:
    """Tokens, attention, alignment, steps and the beam's tree of one source, and of a given target or the answer."""
    settings, record = context.settings, context.record
    if not settings.explain:
        raise NotFoundError("/v1/explain is switched off on this server; it is started with --explain true.")
    characters = len(request.source) + len(request.target or "") + len(request.target_prefix or "")
    until = deadline(request.timeout_ms, record.arrival, settings)
    served, plan = await context.plan(
        request.model, characters, until, lambda served: plan_explain(request, served, settings)
    )
    size = explanation_bytes(plan.task, served.description.sizes, request.encoding)
    context.memory.check_possible(size, "this explanation", "attention")
    context.memory.set("answer", size)
    (outcome,) = await context.run(served, [plan.task], until, "source")
    explained = cast(Explained, outcome)
    parts, content = await context.builder.run(
        lambda check: build(served, request, plan, explained, check), until, context.receive
    )
    record.log_fields |= {**content["usage"], **content["timing"]}
    if settings.log_texts:
        record.log_fields |= {"source": request.source, "target": content["target"]["text"]}
    return LongResponse(parts, context)
