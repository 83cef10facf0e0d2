"""The service's own endpoints, as opposed to OpenAI's and V2's: plan, submit, answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any, cast

from fastapi import APIRouter, Query
from starlette.responses import Response

from attendant.service.engine.tasks import Distribution, Generated, NewTokens, Outcome, Scored
from attendant.service.http.building import extended
from attendant.service.http.context import Context, RequestContext
from attendant.service.http.guard.policy import Access, policy
from attendant.service.http.responses import encoded_response, info_response, model_list_response
from attendant.service.http.route import DirectRoute, GuardedRoute
from attendant.service.http.streaming import EventStream, error_event, server_sent, stream_declaration
from attendant.service.http.submission import TaskStreams, raise_first_failure, raise_if_all_failed
from attendant.service.openai.schemas import ModelListResponse
from attendant.service.requests import schemas
from attendant.service.requests.content import (
    Check,
    Json,
    generate_content,
    next_token_content,
    no_check,
    score_content,
    unknown_content,
)
from attendant.service.requests.documents import Plan, plan_request, splits
from attendant.service.requests.inputs import unknown_pieces
from attendant.service.requests.planning import deadline, plan_next_token, plan_score
from attendant.service.requests.served import ServedModel
from attendant.service.requests.streamed import StreamedDocument

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
DOCUMENT_BYTES = 64  # of tags, positions and segments, for each character of a text that is split
LOGPROB_BYTES = 8  # of a distribution over the vocabulary, for each token
STREAMED = (
    "JSON: of a `token` a TokenEvent, of `text` a TextEvent, of `done` a GenerateResponse, of `error` an ErrorResponse"
)
EVENTS = {
    "token": schemas.TokenEvent.model_json_schema(),
    "text": schemas.TextEvent.model_json_schema(),
    "done": {"$ref": "#/components/schemas/GenerateResponse"},
    "error": {"$ref": "#/components/schemas/ErrorResponse"},
}


def errors(*statuses: int) -> Responses:
    return {status: {"model": schemas.ErrorResponse, "description": ERRORS[status]} for status in statuses}


POST_ERRORS = errors(*ERRORS)
FORBIDDEN = "The key is no admin key, or there is none."
direct = APIRouter(route_class=DirectRoute)
router = APIRouter(route_class=GuardedRoute)


@direct.post(
    "/v1/generate",
    response_model=schemas.GenerateResponse,
    responses={
        **POST_ERRORS,
        200: stream_declaration(STREAMED, **EVENTS),
    },
)
@policy(Access.API_KEY, label="/v1/generate", names_model=True)
async def generate(request: schemas.GenerateRequest, context: Context) -> Response:
    """Decode one text or many: greedy, beam search or sampling; streaming."""
    settings = context.settings
    characters = sum(map(len, request.inputs)) + len(request.target_prefix or "") + _phrase_characters(request)
    if splits(request):
        context.memory.set("document", DOCUMENT_BYTES * characters)
    until = deadline(request.timeout_ms, context.record.arrival, settings)
    served, planned = await context.plan(
        request.model, characters, until, lambda served: plan_request(request, served, settings)
    )

    def finish(outcomes: list[Outcome], check: Check = no_check) -> Json:
        return _finish_generate(context, request, served, planned, outcomes, check)

    if request.stream:
        streams = context.stream(served, planned.tasks, until, "inputs")
        return EventStream(_stream(served, planned, streams, finish), streams, error_event)
    outcomes = raise_if_all_failed(planned.in_order(await context.run(served, planned.tasks, until, "inputs")))
    if request.all_or_nothing:
        raise_first_failure(outcomes)
    results = [outcome for outcome in outcomes if isinstance(outcome, Generated)]
    tokens = sum(len(hypothesis.ids) for result in results for hypothesis in result.hypotheses)
    return await encoded_response(lambda check: finish(outcomes, check), tokens, context, extended(until))


@direct.post("/v1/next-token", response_model=schemas.NextTokenResponse, responses=POST_ERRORS)
@policy(Access.API_KEY, label="/v1/next-token", names_model=True)
async def next_token(request: schemas.NextTokenRequest, context: Context) -> Response:
    """The softmax over the next token, given a source and the beginning of a target."""
    record = context.record
    until = deadline(request.timeout_ms, record.arrival, context.settings)
    characters = len(request.source) + len(request.prefix) + sum(map(len, request.prefix_tokens or ()))
    characters += _phrase_characters(request)
    served, task = await context.plan(
        request.model, characters, until, lambda served: plan_next_token(request, served, context.settings)
    )
    record.log_fields |= {"source_tokens": len(task.source), "target_tokens": len(task.prefix)}
    if context.settings.log_texts:
        record.log_fields |= {"source": request.source, "prefix": request.prefix_tokens or request.prefix}
    context.memory.set("result", LOGPROB_BYTES * len(served.tokens))
    (outcome,) = await context.run(served, [task], until, "source")
    result = cast(Distribution, outcome)
    unknown = unknown_content(unknown_pieces(served, request.source, task.source))
    return await encoded_response(
        lambda _: next_token_content(served, result, request.top_k, request.temperature) | unknown,
        request.top_k or len(served.tokens),
        context,
        until,
    )


@direct.post("/v1/score", response_model=schemas.ScoreResponse, responses=POST_ERRORS)
@policy(Access.API_KEY, label="/v1/score", names_model=True)
async def score(request: schemas.ScoreRequest, context: Context) -> Response:
    """The log-probability of a given target, token by token."""
    record = context.record
    until = deadline(request.timeout_ms, record.arrival, context.settings)
    characters = len(request.source) + len(request.target)
    served, task = await context.plan(request.model, characters, until, lambda served: plan_score(request, served))
    record.log_fields |= {"source_tokens": len(task.source), "target_tokens": len(task.target) + 1}
    if context.settings.log_texts:
        record.log_fields |= {"source": request.source, "target": request.target}
    (outcome,) = await context.run(served, [task], until, "source")
    result = cast(Scored, outcome)
    unknown = unknown_content(unknown_pieces(served, request.source, task.source))
    return await encoded_response(
        lambda _: score_content(served, task.target, result) | unknown, len(task.target), context, until
    )


@router.get("/v1/info", responses=errors(401, 404, 422, 431, 500, 503))
@policy(Access.API_KEY, label="/v1/info")
async def info(
    context: Context,
    model: Annotated[str | None, Query(description="a model's name; without it, the default one")] = None,
) -> schemas.InfoResponse:
    """What a model is, what computes it, and within which limits."""
    return info_response(context.models.loaded(context.models.find(model)), context.settings)


@router.post(
    "/v1/reload",
    responses={**POST_ERRORS, 403: {"model": schemas.ErrorResponse, "description": FORBIDDEN}},
)
@policy(Access.ADMIN_KEY, label="/v1/reload", one_replica=True)
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


@router.get("/healthz", responses=errors(431))
@policy(Access.OPEN)
async def healthz() -> schemas.StatusResponse:
    """The process is alive."""
    return schemas.StatusResponse(status="ok")


@router.get("/readyz", responses=errors(431, 503))
@policy(Access.OPEN)
async def readyz(context: Context) -> schemas.StatusResponse:
    """Ready: loaded, certified, warmed up, and not stopping; of several models, at least one."""
    context.models.check_ready()
    return schemas.StatusResponse(status="ready")


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **errors(401, 431, 500)},
)
@policy(Access.API_KEY, one_replica=True)
async def metrics(context: Context) -> Response:
    """Counters, gauges and histograms for Prometheus."""
    body, content_type = await asyncio.to_thread(context.metrics.render)  # a few milliseconds
    return Response(body, headers={"content-type": content_type})


def _phrase_characters(request: schemas.GenerateRequest | schemas.NextTokenRequest) -> int:
    terms = request.terms or () if isinstance(request, schemas.GenerateRequest) else ()
    targets = [text for term in terms for text in term.target]
    return sum(map(len, (*(request.forbid or ()), *(request.choices or ()), *targets)))


async def _stream(
    served: ServedModel, planned: Plan, streams: TaskStreams, finish: Callable[[list[Outcome]], Json]
) -> AsyncIterator[bytes]:
    """Token events as tokens are agreed on, text events for what is between them, then the whole answer."""
    text = StreamedDocument(served, planned)
    outcomes: list[Outcome] = []
    for place in range(len(planned.tasks)):
        late = b"".join(map(_text_event, text.begin()))
        while isinstance(event := await streams.next(place), NewTokens):
            yield late + b"".join(map(_text_event, text.add(event)))
            late = b""
        outcomes.append(event)
        late += b"".join(map(_text_event, text.finish(event)))
        if place < len(planned.tasks) - 1:
            yield late
    rest = b"".join(map(_text_event, text.end()))
    yield (late if planned.tasks else b"") + rest + server_sent("done", finish(planned.in_order(outcomes)))


def _text_event(event: Json) -> bytes:
    return server_sent("token" if "token" in event else "text", event)


def _finish_generate(
    context: RequestContext,
    request: schemas.GenerateRequest,
    served: ServedModel,
    planned: Plan,
    outcomes: list[Outcome],
    check: Check,
) -> Json:
    """The whole answer; also adds what the request's log line says of it."""
    record = context.record
    content = generate_content(
        served, planned.tasks, outcomes, request.logprobs, record.id, check, planned.unknown, planned.detected
    )
    record.log_fields |= {"inputs": len(outcomes), **content["usage"], **content["timing"]}
    failed = sum(isinstance(outcome, Exception) for outcome in outcomes)
    if failed:
        record.log_fields["failed_inputs"] = failed
        context.metrics.model(record.model).failed(failed)
    if context.settings.log_texts:
        found = [[hypothesis["text"] for hypothesis in output["hypotheses"]] for output in content["outputs"]]
        record.log_fields |= {"texts": request.inputs, "answers": found}
    return content
