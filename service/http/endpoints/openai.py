"""The OpenAI dialect: models and completions, so that OpenAI's own client works against this service."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from attendant.service.http.context import Context
from attendant.service.http.endpoints.completion import answer_completion
from attendant.service.http.endpoints.native import ERRORS, Responses
from attendant.service.http.guard.policy import Access, Dialect, policy
from attendant.service.http.responses import model_list_response, model_response
from attendant.service.http.route import DirectRoute, GuardedRoute
from attendant.service.http.streaming import stream_declaration
from attendant.service.openai.errors import openai_error
from attendant.service.openai.paths import COMPLETIONS, MODELS
from attendant.service.openai.schemas import (
    CompletionRequest,
    CompletionResponse,
    ModelListResponse,
    ModelResponse,
    OpenAIErrorResponse,
)

OPENAI = Dialect(openai_error)
STREAMED = "JSON: chunks as OpenAI sends them; the last is [DONE]"

router = APIRouter(route_class=GuardedRoute)
direct = APIRouter(route_class=DirectRoute)


def _errors(*statuses: int, **other: str) -> Responses:
    """Declarations for OpenAPI; "4XX" keeps FastAPI from adding a 422, which these paths never answer."""
    described = {**{str(status): ERRORS[status] for status in statuses}, "4XX": "Any other refusal.", **other}
    return {status: {"model": OpenAIErrorResponse, "description": text} for status, text in described.items()}


COMPLETION_ERRORS = _errors(
    *(status for status in ERRORS if status not in (400, 422)),
    **{"400": "The body is not JSON, or a field is unknown, wrong or cannot be honoured."},
)


@router.get(MODELS, responses=_errors(401, 500, 503))
@policy(Access.API_KEY, label=MODELS, dialect=OPENAI)
async def list_models(context: Context) -> ModelListResponse:
    """The models that are served, as OpenAI lists them."""
    return model_list_response(context.models)


@router.get(MODELS + "/{name:path}", responses=_errors(401, 404, 500, 503))
@policy(Access.API_KEY, label=MODELS, dialect=OPENAI)
async def get_model(
    name: Annotated[str, Path(description="the model's name", min_length=1)], context: Context
) -> ModelResponse:
    """The model of this name."""
    return model_response(context.models, context.models.find(name))


@direct.post(
    COMPLETIONS,
    response_model=CompletionResponse,
    responses={**COMPLETION_ERRORS, 200: stream_declaration(STREAMED)},
)
@policy(Access.API_KEY, label=COMPLETIONS, names_model=True, dialect=OPENAI)
async def create_completion(request: CompletionRequest, context: Context) -> Response:
    """Targets for one prompt or many, as OpenAI completes them: the prompt is the source."""
    return await answer_completion(request, context)
