"""The service's own endpoints, as opposed to OpenAI's and V2's: plan, submit, answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any, cast

from fastapi import APIRouter, Query
from starlette.responses import Response

from service.engine.tasks import Distribution, Generate, Generated, NewTokens, Outcome, Scored
from service.http.context import Context, RequestContext
from service.http.responses import encoded_response, info_response, model_list_response
from service.http.route import DirectRoute
from service.http.streaming import EventStream, error_event, server_sent, stream_declaration
from service.http.submission import TaskStreams, run_tasks
from service.requests import schemas
from service.requests.content import Json, StreamedText, generate_content, next_token_content, score_content
from service.requests.openai_schemas import ModelListResponse
from service.requests.planning import deadline, plan_generate, plan_next_token, plan_score
from service.requests.served import ServedModel

Responses = dict[int | str, dict[str, Any]]
ERRORS = {
    400: "The body is not JSON, or not what its Content-Encoding says.",
    401: "The API key is missing or wrong.",
    404: "There is no model of this name.",
    408: "The body was not sent in time.",
    413: "The body is too large.",
    415: "A Content-Encoding other than gzip and deflate.",
    422: "A field is unknown, of the wrong type or out of its range; or a text is too long.",
    429: "The queue is full; Retry-After says when to try again.",
    431: "The headers are too large.",
    500: "Something went wrong here; the message has the request's id.",
    503: "Not ready, stopping, or the model cannot be loaded.",
    504: "The deadline passed before anything could be answered.",
}
STREAMED = "JSON: of a `token` a TokenEvent, of `done` a GenerateResponse, of `error` an ErrorResponse"
EVENTS = {
    "token": schemas.TokenEvent.model_json_schema(),
    "done": {"$ref": "#/components/schemas/GenerateResponse"},
    "error": {"$ref": "#/components/schemas/ErrorResponse"},
}


def errors(*statuses: int) -> Responses:
    return {status: {"model": schemas.ErrorResponse, "description": ERRORS[status]} for status in statuses}


POST_ERRORS = errors(*ERRORS)
FORBIDDEN = "The key is no admin key, or there is none."
direct = APIRouter(route_class=DirectRoute)
router = APIRouter()
admin = APIRouter()  # needs an admin key
probes = APIRouter()  # need no key


@direct.post(
    "/v1/generate",
    response_model=schemas.GenerateResponse,
    responses={
        **POST_ERRORS,
        200: stream_declaration(STREAMED, **EVENTS),
    },
)
async def generate(request: schemas.GenerateRequest, context: Context) -> Response:
    """Decode one text or many: greedy, beam search or sampling; streaming."""
    settings = context.settings
    characters = sum(map(len, request.inputs))
    until = deadline(request.timeout_ms, context.record.arrival, settings)
    served, tasks = await context.plan(
        request.model, characters, until, lambda served: plan_generate(request, served, settings)
    )

    def finish(outcomes: list[Outcome]) -> Json:
        return _finish_generate(context, request, served, tasks, outcomes)

    if request.stream:
        streams = TaskStreams(served.engine, tasks, until, context.receive, "inputs")
        return EventStream(_stream(served, streams, finish), streams, error_event)
    outcomes = await run_tasks(served.engine, tasks, until, context.receive, "inputs")
    results = [outcome for outcome in outcomes if isinstance(outcome, Generated)]
    tokens = sum(len(hypothesis.ids) for result in results for hypothesis in result.hypotheses)
    return await encoded_response(lambda: finish(outcomes), tokens)


@direct.post("/v1/next-token", response_model=schemas.NextTokenResponse, responses=POST_ERRORS)
async def next_token(request: schemas.NextTokenRequest, context: Context) -> Response:
    """The softmax over the next token, given a source and the beginning of a target."""
    record = context.record
    until = deadline(request.timeout_ms, record.arrival, context.settings)
    characters = len(request.source) + len(request.prefix)
    served, task = await context.plan(request.model, characters, until, lambda served: plan_next_token(request, served))
    record.facts |= {"source_tokens": len(task.source), "target_tokens": len(task.prefix)}
    if context.settings.log_texts:
        record.facts |= {"source": request.source, "prefix": request.prefix_tokens or request.prefix}
    (outcome,) = await run_tasks(served.engine, [task], until, context.receive, "source")
    result = cast(Distribution, outcome)
    return await encoded_response(
        lambda: next_token_content(served, result, request.top_k, request.temperature),
        request.top_k or len(served.tokens),
    )


@direct.post("/v1/score", response_model=schemas.ScoreResponse, responses=POST_ERRORS)
async def score(request: schemas.ScoreRequest, context: Context) -> Response:
    """The log-probability of a given target, token by token."""
    record = context.record
    until = deadline(request.timeout_ms, record.arrival, context.settings)
    characters = len(request.source) + len(request.target)
    served, task = await context.plan(request.model, characters, until, lambda served: plan_score(request, served))
    record.facts |= {"source_tokens": len(task.source), "target_tokens": len(task.target) + 1}
    if context.settings.log_texts:
        record.facts |= {"source": request.source, "target": request.target}
    (outcome,) = await run_tasks(served.engine, [task], until, context.receive, "source")
    result = cast(Scored, outcome)
    return await encoded_response(lambda: score_content(served, task.target, result), len(task.target))


@router.get("/v1/info", responses=errors(401, 404, 422, 431, 500, 503))
async def info(
    context: Context,
    model: Annotated[str | None, Query(description="a model's name; without it, the default one")] = None,
) -> schemas.InfoResponse:
    """What a model is, what computes it, and within which limits."""
    return info_response(context.models.loaded(context.models.find(model)), context.settings)


@admin.post(
    "/v1/reload",
    responses={**POST_ERRORS, 403: {"model": schemas.ErrorResponse, "description": FORBIDDEN}},
)
async def reload(
    context: Context, request: schemas.ReloadRequest | None = None
) -> schemas.InfoResponse | ModelListResponse:
    """Load, certify and swap in bundles with no request dropped; needs an admin key.

    The answer is that of /v1/info, or with several models that of /v1/models.
    """
    request = request or schemas.ReloadRequest()
    models = context.models
    model = await models.reload(None if request.bundle is None else Path(request.bundle), request.model)
    if context.settings.models is not None or model is None:
        return model_list_response(models)
    return info_response(models.loaded(model), context.settings)


@probes.get("/healthz", responses=errors(431))
async def healthz() -> schemas.StatusResponse:
    """The process is alive."""
    return schemas.StatusResponse(status="ok")


@probes.get("/readyz", responses=errors(431, 503))
async def readyz(context: Context) -> schemas.StatusResponse:
    """Ready: loaded, certified, warmed up, and not stopping; of several models, at least one."""
    context.models.check_ready()
    return schemas.StatusResponse(status="ready")


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **errors(401, 431, 500)},
)
async def metrics(context: Context) -> Response:
    """Counters, gauges and histograms for Prometheus."""
    body, content_type = await asyncio.to_thread(context.metrics.render)  # a few milliseconds
    return Response(body, headers={"content-type": content_type})


async def _stream(
    served: ServedModel, streams: TaskStreams, finish: Callable[[list[Outcome]], Json]
) -> AsyncIterator[bytes]:
    """Token events as tokens are agreed on, then the whole answer."""
    text = StreamedText(served)
    while isinstance(event := await streams.next(0), NewTokens):
        yield b"".join(server_sent("token", token) for token in text.add(event))
    result = cast(Generated, event)
    tokens = b"".join(server_sent("token", token) for token in text.finish(result.hypotheses[0]))
    yield tokens + server_sent("done", finish([result]))


def _finish_generate(
    context: RequestContext,
    request: schemas.GenerateRequest,
    served: ServedModel,
    tasks: list[Generate],
    outcomes: list[Outcome],
) -> Json:
    """The whole answer; also adds what the request's log line says of it."""
    record = context.record
    content = generate_content(served, tasks, outcomes, request.logprobs, record.id)
    record.facts |= {"inputs": len(tasks), **content["usage"], **content["timing"]}
    failed = sum(isinstance(outcome, Exception) for outcome in outcomes)
    if failed:
        record.facts["failed_inputs"] = failed
    if context.settings.log_texts:
        found = [[hypothesis["text"] for hypothesis in output["hypotheses"]] for output in content["outputs"]]
        record.facts |= {"texts": request.inputs, "answers": found}
    return content
