"""The HTTP API, but for the OpenAI dialect: read, plan, ask the engine, answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from service.engine.tasks import Distribution, Generate, Generated, NewTokens, Scored
from service.errors import UnauthorizedError
from service.http import schemas
from service.http.answers import Json, StreamedText, encode, generate_answer, next_token_answer, score_answer
from service.http.bridge import Events, ask
from service.http.middleware import Record, record_of
from service.http.models import Holder, Served
from service.http.planning import deadline, plan_generate, plan_next_token, plan_score
from service.http.streaming import EVENT_STREAM, EventStream, error_event, server_sent
from service.metrics import Metrics
from service.settings import Settings

ERRORS = {
    400: "The body is not JSON.",
    401: "The API key is missing or wrong.",
    413: "The body is too large.",
    422: "A field is unknown, of the wrong type or out of its range; or a text is too long.",
    429: "The queue is full; Retry-After says when to try again.",
    500: "Something went wrong here; the message has the request's id.",
    503: "Not ready, or stopping.",
    504: "The deadline passed before anything could be answered.",
}


class Route(APIRoute):
    """A documented route whose handler gets the request as it is: checks and encoding are the handler's."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return cast(Callable[[Request], Coroutine[Any, Any, Response]], self.endpoint)


class Api:
    def __init__(self, settings: Settings, holder: Holder, metrics: Metrics) -> None:
        self._settings, self._holder, self._metrics = settings, holder, metrics

    def router(self) -> APIRouter:
        router = APIRouter(route_class=Route)
        for path, handler, request, answer in (
            ("/v1/generate", self.generate, schemas.GenerateRequest, schemas.GenerateAnswer),
            ("/v1/next-token", self.next_token, schemas.NextTokenRequest, schemas.NextTokenAnswer),
            ("/v1/score", self.score, schemas.ScoreRequest, schemas.ScoreAnswer),
            ("/v1/reload", self.reload, schemas.ReloadRequest, schemas.InfoAnswer),
        ):
            router.add_api_route(path, handler, methods=["POST"], **_described(handler, answer, ERRORS, request))
        errors = {401: ERRORS[401], 503: ERRORS[503]}
        router.add_api_route(
            "/v1/info", self.info, methods=["GET"], **_described(self.info, schemas.InfoAnswer, errors)
        )
        for path, probe in (("/healthz", self.healthz), ("/readyz", self.readyz)):
            described = _described(probe, schemas.Status, {503: ERRORS[503]} if path == "/readyz" else {})
            router.add_api_route(path, probe, methods=["GET"], **described)
            router.add_api_route(path, probe, methods=["HEAD"], include_in_schema=False)
        router.add_api_route(
            "/metrics", self.metrics, methods=["GET"], **_described(self.metrics, None, {401: ERRORS[401]})
        )
        return router

    async def generate(self, request: Request) -> Response:
        """Decode one text or many: greedy, beam search or sampling; streaming."""
        wanted = schemas.parse(schemas.GenerateRequest, await request.body())
        served, record = self._holder.get(), record_of(request.scope)
        tasks = plan_generate(wanted, served, self._settings)
        until = deadline(wanted.timeout_ms, record.arrival, self._settings)
        finish = _Finish(served, tasks, wanted, record, self._settings.log_texts)
        if wanted.stream:
            events = Events(served.engine, tasks[0], until, request.receive)
            return EventStream(_chunks(served, events, finish), events, error_event)
        answers = await ask(served.engine, tasks, until, request.receive)
        return _json(finish(cast(list[Generated], answers)))

    async def next_token(self, request: Request) -> Response:
        """The softmax over the next token, given a source and the beginning of a target."""
        wanted = schemas.parse(schemas.NextTokenRequest, await request.body())
        served, record = self._holder.get(), record_of(request.scope)
        task = plan_next_token(wanted, served)
        record.facts |= {"source_tokens": len(task.source), "target_tokens": len(task.prefix)}
        if self._settings.log_texts:
            record.facts |= {"source": wanted.source, "prefix": wanted.prefix_tokens or wanted.prefix}
        until = deadline(wanted.timeout_ms, record.arrival, self._settings)
        (answer,) = await ask(served.engine, [task], until, request.receive)
        return _json(next_token_answer(served, cast(Distribution, answer), wanted.top_k, wanted.temperature))

    async def score(self, request: Request) -> Response:
        """The log-probability of a given target, token by token."""
        wanted = schemas.parse(schemas.ScoreRequest, await request.body())
        served, record = self._holder.get(), record_of(request.scope)
        task = plan_score(wanted, served)
        record.facts |= {"source_tokens": len(task.source), "target_tokens": len(task.target) + 1}
        if self._settings.log_texts:
            record.facts |= {"source": wanted.source, "target": wanted.target}
        until = deadline(wanted.timeout_ms, record.arrival, self._settings)
        (answer,) = await ask(served.engine, [task], until, request.receive)
        return _json(score_answer(served, task.target, cast(Scored, answer)))

    async def info(self, _: Request) -> Response:
        """What is served, on what, and within which limits."""
        return _json(info_answer(self._holder.get(), self._settings))

    async def reload(self, request: Request) -> Response:
        """Load, certify and swap in a bundle with no request dropped; only where API keys are set."""
        if not self._settings.api_keys:
            raise UnauthorizedError("Reloading over HTTP needs API keys to be set; the signal SIGHUP reloads too.")
        wanted = schemas.parse(schemas.ReloadRequest, await request.body() or b"{}")
        served = await self._holder.reload(None if wanted.bundle is None else Path(wanted.bundle))
        return _json(info_answer(served, self._settings))

    async def healthz(self, _: Request) -> Response:
        """The process is alive."""
        return _json({"status": "ok"})

    async def readyz(self, _: Request) -> Response:
        """Ready: loaded, certified, warmed up, and not stopping."""
        self._holder.get()
        return _json({"status": "ready"})

    async def metrics(self, _: Request) -> Response:
        """Counters, gauges and histograms for Prometheus."""
        body, content_type = await asyncio.to_thread(self._metrics.render)  # a few milliseconds
        return Response(body, headers={"content-type": content_type})


async def _chunks(served: Served, events: Events, finish: _Finish) -> AsyncIterator[bytes]:
    """Token events as they become certain, then the whole answer."""
    text = StreamedText(served)
    while isinstance(event := await events.get(), NewTokens):
        yield b"".join(server_sent("token", token) for token in text.add(event))
    answer = cast(Generated, event)
    tokens = b"".join(server_sent("token", token) for token in text.finish(answer.hypotheses[0]))
    yield tokens + server_sent("done", finish([answer]))


class _Finish:
    """The whole answer of a generation, and what the log says of it."""

    def __init__(
        self, served: Served, tasks: list[Generate], wanted: schemas.GenerateRequest, record: Record, log_texts: bool
    ) -> None:
        self._served, self._tasks, self._wanted = served, tasks, wanted
        self._record, self._log_texts = record, log_texts

    def __call__(self, answers: list[Generated]) -> Json:
        answer = generate_answer(self._served, self._tasks, answers, self._wanted.logprobs)
        self._record.facts |= {"inputs": len(self._tasks), **answer["usage"], **answer["timing"]}
        if self._log_texts:
            found = [[hypothesis["text"] for hypothesis in output["hypotheses"]] for output in answer["outputs"]]
            self._record.facts |= {"texts": self._wanted.inputs, "answers": found}
        return answer


def info_answer(served: Served, settings: Settings) -> Json:
    described = served.description
    return {
        "version": version("attendant"),
        "model": served.name,
        "bundle": {
            "sizes": asdict(described.sizes),
            "variants": list(described.variants),
            "special_ids": dict(described.special_ids),
            "produced_by": dict(described.produced_by),
        },
        "precision": described.precision,
        "provider": described.provider,
        "provider_fallback": described.provider_fallback,
        "threads": described.threads,
        "lanes": described.lanes,
        "limits": {
            "max_source_length": described.max_source_length,
            "max_target_length": described.max_target_length,
            **{name: getattr(described, name) for name in ("max_rows", "max_queue_requests", "max_queue_tokens")},
            **{name: getattr(settings, name) for name in ("max_inputs", "max_beam_size", "max_body_bytes")},
            "timeout_ms": settings.timeout_ms,
        },
        "certificate": asdict(described.certificate),
    }


def _json(answer: Json) -> Response:
    return Response(encode(answer), media_type="application/json")


def _described(
    handler: Callable[..., Any],
    answer: type[BaseModel] | None,
    errors: dict[int, str],
    request: type[BaseModel] | None = None,
) -> dict[str, Any]:
    """What OpenAPI says of a route."""
    responses: dict[int | str, Any] = {200: {"model": answer, "description": "The answer."}}
    if answer is None:
        responses[200] = {"description": "The answer.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    if answer is schemas.GenerateAnswer:
        about = "With stream: `token` events (TokenEvent), then one `done` event with the answer, or `error`."
        responses[200]["content"] = {EVENT_STREAM: {"schema": {"type": "string", "description": about}}}
    responses |= {status: {"model": schemas.ErrorAnswer, "description": text} for status, text in errors.items()}
    summary = (handler.__doc__ or "").strip()
    described: dict[str, Any] = {"responses": responses, "summary": summary, "response_model": None}
    if request is not None:
        content = {"application/json": {"schema": request.model_json_schema()}}
        described["openapi_extra"] = {"requestBody": {"required": True, "content": content}}
    return described
