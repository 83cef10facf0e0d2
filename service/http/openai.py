"""The OpenAI dialect: models and completions, so that OpenAI's own client works against this service."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from service.errors import InvalidFieldError, ServiceError
from service.http.completion import answer_completion
from service.http.context import Context
from service.http.errors import UnknownModelError
from service.http.middleware import native_error
from service.http.native import ERRORS, Responses
from service.http.responses import model_list_response, model_response
from service.http.route import DirectRoute
from service.http.streaming import stream_declaration
from service.requests.content import Json
from service.requests.openai_schemas import (
    CompletionRequest,
    CompletionResponse,
    ModelListResponse,
    ModelResponse,
    OpenAIErrorResponse,
)

ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
MODELS, COMPLETIONS, CHAT = "/v1/models", "/v1/completions", "/v1/chat/completions"
STREAMED = "JSON: chunks as OpenAI sends them; the last is [DONE]"

router = APIRouter()
direct = APIRouter(route_class=DirectRoute)


def error_format(path: str, error: ServiceError) -> tuple[int, Json]:
    """Status and body of an error: in OpenAI's format on OpenAI's paths, in the native one elsewhere."""
    if path not in (COMPLETIONS, CHAT, MODELS) and not path.startswith(MODELS + "/"):
        return native_error(path, error)
    status = 400 if isinstance(error, InvalidFieldError) else error.status
    kind = "server_error" if status >= 500 else ERROR_TYPES.get(status, "invalid_request_error")
    code = "model_not_found" if isinstance(error, UnknownModelError) else error.type
    return status, {"error": {"message": error.message, "type": kind, "param": error.field, "code": code}}


def _errors(*statuses: int, **other: str) -> Responses:
    """Declarations for OpenAPI; "4XX" keeps FastAPI from adding a 422, which these paths never answer."""
    described = {**{str(status): ERRORS[status] for status in statuses}, "4XX": "Any other refusal.", **other}
    return {status: {"model": OpenAIErrorResponse, "description": text} for status, text in described.items()}


COMPLETION_ERRORS = _errors(
    *(status for status in ERRORS if status not in (400, 422)),
    **{"400": "The body is not JSON, or a field is unknown, wrong or cannot be honoured."},
)


@router.get(MODELS, responses=_errors(401, 500, 503))
async def list_models(context: Context) -> ModelListResponse:
    """The models that are served, as OpenAI lists them."""
    return model_list_response(context.models)


@router.get(MODELS + "/{name:path}", responses=_errors(401, 404, 500, 503))
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
async def create_completion(request: CompletionRequest, context: Context) -> Response:
    """Targets for one prompt or many, as OpenAI completes them: the prompt is the source."""
    return await answer_completion(request, context)
