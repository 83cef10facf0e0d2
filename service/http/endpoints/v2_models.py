"""The Open Inference Protocol V2: the server, its models, and what Triton's clients ask about them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from attendant.common.version import VERSION
from attendant.service.errors import NotFoundError, ServiceError
from attendant.service.http.context import Context, RequestContext
from attendant.service.http.endpoints.native import ERRORS, Responses
from attendant.service.http.endpoints.v2_schemas import (
    IndexedModel,
    IndexRequest,
    InferErrorResponse,
    LiveResponse,
    ModelConfig,
    ModelConfigTensor,
    ModelMetadata,
    ModelReadyResponse,
    ModelStatisticsContent,
    ReadyResponse,
    ServerMetadata,
    StatisticsResponse,
    TensorDescription,
)
from attendant.service.http.guard.policy import Access, Dialect, policy
from attendant.service.http.route import GuardedRoute
from attendant.service.models.loading import cannot_load
from attendant.service.models.model import Model
from attendant.service.requests.content import Json

PREFIX = "/v2"
MODEL = PREFIX + "/models/{name}"
VERSION_OF_MODEL = MODEL + "/versions/{version}"  # the same paths, for clients that name a version
ONLY_VERSION = "1"  # a bundle has no number: whatever is loaded is version 1
PLATFORM = "attendant_onnxruntime"
EXTENSIONS = ["binary_tensor_data", "model_repository", "model_configuration", "statistics"]
OUTPUTS = {"text_output": "BYTES", "score": "FP32", "finish_reason": "BYTES"}
CONFIG_TYPES = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32"}
NO_SUCH_MODEL = {"404": "There is no model of this name.", "4XX": "Any other refusal."}

router = APIRouter(route_class=GuardedRoute)


def error_format(error: ServiceError) -> tuple[int, Json]:
    return error.status, {"error": error.message}


V2 = Dialect(error_format, PREFIX)


def errors(*statuses: int, **other: str) -> Responses:
    described = {**{str(status): ERRORS[status] for status in statuses}, **other}
    return {status: {"model": InferErrorResponse, "description": text} for status, text in described.items()}


def check_version(request: Request) -> None:
    """Refuse a path with a version that does not exist."""
    version = request.path_params.get("version", ONLY_VERSION)
    if version != ONLY_VERSION:
        raise NotFoundError(f"There is no version {version[:40]!r}; a model has one version here, {ONLY_VERSION!r}.")


Versioned = Annotated[None, Depends(check_version)]
OF_A_MODEL = errors(401, 500, 503, **NO_SUCH_MODEL)


@router.get(PREFIX, responses=errors(401, 500))
@router.get(PREFIX + "/", include_in_schema=False)
@policy(Access.API_KEY, dialect=V2)
async def server_metadata() -> ServerMetadata:
    """What this server is, and which extensions of the protocol it has."""
    return ServerMetadata(name="attendant", version=VERSION, extensions=EXTENSIONS)


@router.get(PREFIX + "/health/live", responses=errors(431))
@policy(Access.OPEN, dialect=V2)
async def live() -> LiveResponse:
    """The process is alive."""
    return LiveResponse(live=True)


@router.get(PREFIX + "/health/ready", responses=errors(431, 503))
@policy(Access.OPEN, dialect=V2)
async def ready(context: Context) -> ReadyResponse:
    """Ready: loaded, certified, warmed up, and not stopping."""
    context.models.check_ready()
    return ReadyResponse(ready=True)


@router.post(PREFIX + "/repository/index", responses=errors(400, 401, 408, 413, 415, 422, 431, 500, 503))
@policy(Access.API_KEY, dialect=V2)
async def repository_index(context: Context, request: IndexRequest | None = None) -> list[IndexedModel]:
    """The models that there are, with their states by Triton's names."""
    found = [_indexed(model) for model in context.models.list()]
    only_ready = request is not None and request.ready
    return [each for each in found if each.state == "READY" or not only_ready]


@router.get(PREFIX + "/models/stats", responses=errors(401, 500, 503))
@policy(Access.API_KEY, dialect=V2)
async def all_statistics(context: Context) -> StatisticsResponse:
    """Inferences of every model over /v2, since the start."""
    return StatisticsResponse(model_stats=[_statistics(context, model.name) for model in context.models.list()])


@router.get(MODEL + "/stats", responses=OF_A_MODEL)
@router.get(VERSION_OF_MODEL + "/stats", include_in_schema=False)
@policy(Access.API_KEY, dialect=V2)
async def model_statistics(name: str, context: Context, _: Versioned) -> StatisticsResponse:
    """Inferences of this model over /v2, since the start."""
    return StatisticsResponse(model_stats=[_statistics(context, context.models.find(name).name)])


@router.get(MODEL + "/config", responses=OF_A_MODEL)
@router.get(VERSION_OF_MODEL + "/config", include_in_schema=False)
@policy(Access.API_KEY, dialect=V2)
async def model_config(name: str, context: Context, _: Versioned) -> ModelConfig:
    """The model as Triton would configure it."""
    tensors = [
        ModelConfigTensor(name=each, data_type=CONFIG_TYPES[datatype], dims=[-1, -1])
        for each, datatype in OUTPUTS.items()
    ]
    return ModelConfig(
        name=context.models.find(name).name,
        platform=PLATFORM,
        backend="attendant",
        max_batch_size=0,
        input=[ModelConfigTensor(name="text_input", data_type="TYPE_STRING", dims=[-1])],
        output=tensors,
    )


@router.get(MODEL + "/ready", responses=OF_A_MODEL)
@router.get(VERSION_OF_MODEL + "/ready", include_in_schema=False)
@policy(Access.API_KEY, dialect=V2)
async def model_ready(name: str, context: Context, _: Versioned) -> ModelReadyResponse:
    """The model of this name is loaded, or a request loads it."""
    model = context.models.find(name)
    if model.state == "failed":
        raise cannot_load(model)
    return ModelReadyResponse(name=model.name, ready=True)


@router.get(MODEL, responses=OF_A_MODEL)
@router.get(VERSION_OF_MODEL, include_in_schema=False)
@policy(Access.API_KEY, dialect=V2)
async def model_metadata(name: str, context: Context, _: Versioned) -> ModelMetadata:
    """The tensors that the model of this name takes and answers."""
    return ModelMetadata(
        name=context.models.find(name).name,
        versions=[ONLY_VERSION],
        platform=PLATFORM,
        inputs=[TensorDescription(name="text_input", datatype="BYTES", shape=[-1])],
        outputs=[TensorDescription(name=each, datatype=datatype, shape=[-1, -1]) for each, datatype in OUTPUTS.items()],
    )


def _indexed(model: Model) -> IndexedModel:
    """Triton's states: READY; LOADING; UNAVAILABLE, with a reason. A request loads what is unloaded, so it is READY."""
    state = {"loaded": "READY", "unloaded": "READY", "loading": "LOADING"}.get(model.state, "UNAVAILABLE")
    return IndexedModel(name=model.name, version=ONLY_VERSION, state=state, reason=model.failure or "")


def _statistics(context: RequestContext, name: str) -> ModelStatisticsContent:
    found = context.statistics.of(name)
    return ModelStatisticsContent(
        name=name,
        version=ONLY_VERSION,
        last_inference=found.last_inference,
        inference_count=found.inferences,
        execution_count=found.executions,
        inference_stats=found.content(),
        batch_stats=[],
    )
