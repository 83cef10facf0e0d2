"""The OpenAI dialect: models and completions, so that OpenAI's own client works against this service."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.engine.tasks import Distribution, Generate, Generated, Hypothesis, Ids, NewTokens, NextToken
from service.errors import NotFoundError, ServiceError
from service.http.answers import Json, StreamedText, encode
from service.http.bridge import Events, Receive, ask
from service.http.middleware import Record, record_of
from service.http.models import Served
from service.http.native import Route
from service.http.openai_request import CompletionRequest, Plan, alternatives_of, plan_completion, read_request
from service.http.planning import deadline
from service.http.streaming import EventStream
from service.settings import Settings

DONE = b"data: [DONE]\n\n"
REASONS = {"stop": "stop", "length": "length", "deadline": "length"}
KINDS = {401: "authentication_error", 429: "rate_limit_error"}
MODELS, COMPLETIONS = "/v1/models", "/v1/completions"
FEW = 64


class UnknownModelError(NotFoundError):
    pass


def openai_router(get: Callable[[], Served], settings: Settings) -> APIRouter:
    """The routes; `get` gives what is served now, or says that nothing is."""
    dialect = Dialect(get, settings)
    router = APIRouter(route_class=Route)
    schema = {"required": True, "content": {"application/json": {"schema": CompletionRequest.model_json_schema()}}}
    about: dict[str, Any] = {"response_model": None, "responses": {200: {"description": "As OpenAI's API answers."}}}
    for path, handler in ((MODELS, dialect.models), (MODELS + "/{name:path}", dialect.model)):
        router.add_api_route(path, handler, methods=["GET"], summary=handler.__doc__, **about)
    router.add_api_route(
        COMPLETIONS, dialect.completions, methods=["POST"], summary=Dialect.completions.__doc__,
        openapi_extra={"requestBody": schema}, **about,
    )  # fmt: skip
    return router


def error_form(error: ServiceError) -> Json:
    """An error as OpenAI's clients expect it."""
    kind = "server_error" if error.status >= 500 else KINDS.get(error.status, "invalid_request_error")
    code = "model_not_found" if isinstance(error, UnknownModelError) else error.type
    return {"error": {"message": error.message, "type": kind, "param": error.field, "code": code}}


ERROR_FORMS = {MODELS: error_form, COMPLETIONS: error_form}


class Dialect:
    def __init__(self, get: Callable[[], Served], settings: Settings) -> None:
        self._get, self._settings = get, settings
        self._created = int(time.time())

    async def models(self, _: Request) -> Response:
        """The model that is served, as OpenAI lists models."""
        return _json({"object": "list", "data": [self._model(self._get())]})

    async def model(self, request: Request) -> Response:
        """The model of this name."""
        record = record_of(request.scope)
        record.endpoint = MODELS
        try:
            served = self._get()
            _check_name(request.path_params["name"], served)
        except ServiceError as error:  # the path has a name in it, so the form is given here
            record.fail(error)
            return _json(error_form(error), error.status)
        return _json(self._model(served))

    async def completions(self, request: Request) -> Response:
        """Targets for one prompt or many, as OpenAI completes them: the prompt is the source."""
        wanted = read_request(await request.body())
        served, record = self._get(), record_of(request.scope)
        _check_name(wanted.model, served)
        completion = Completion(served, plan_completion(wanted, served, self._settings), wanted, record)
        completion.until = deadline(None, record.arrival, self._settings)
        completion.log_texts = self._settings.log_texts
        if wanted.stream:
            events = AllEvents(completion, request.receive)
            return EventStream(_chunks(completion, events, request.receive), cast(Events, events), _error_event)
        return _json(await completion.whole(request.receive))

    def _model(self, served: Served) -> Json:
        return {"id": served.name, "object": "model", "created": self._created, "owned_by": "attendant"}


class Completion:
    """One request on its way to its answer."""

    def __init__(self, served: Served, plan: Plan, wanted: CompletionRequest, record: Record) -> None:
        self.served, self.plan, self.wanted, self._record = served, plan, wanted, record
        self.until: float | None = None
        self.log_texts = False
        self._head = {
            "id": f"cmpl-{record.id}", "object": "text_completion", "created": int(time.time()), "model": served.name,
        }  # fmt: skip

    async def whole(self, receive: Receive) -> Json:
        answers = cast(list[Generated], await ask(self.served.engine, self.plan.tasks, self.until, receive))
        choices: list[Json] = []
        per_prompt = self.plan.tasks_per_prompt
        for place, source in enumerate(self.plan.sources):
            found = [h for a in answers[place * per_prompt : (place + 1) * per_prompt] for h in a.hypotheses]
            for hypothesis in self._best(found):
                text = StreamedText(self.served)
                events = list(text.finish(hypothesis))
                logprobs = await self.logprobs(source, hypothesis.ids, events, 0, receive)
                choices.append(self.choice(len(choices), events, logprobs, hypothesis.finish_reason))
        usage = self.usage(answers)
        self.note(usage, [choice["text"] for choice in choices])
        return {**self._head, "choices": choices, "usage": usage}

    def _best(self, found: list[Hypothesis]) -> list[Hypothesis]:
        """Samples in their own order, unless some of them are to be left out."""
        if len(found) > self.plan.choices:
            found = sorted(found, key=lambda hypothesis: -hypothesis.score)
        return found[: self.plan.choices]

    async def logprobs(
        self, source: Ids, ids: Ids, events: Sequence[Json], offset: int, receive: Receive
    ) -> Json | None:
        """Of the tokens in `events`, the last ones of `ids`; `offset` is where their text begins."""
        count = self.plan.alternatives
        if count is None:
            return None
        offsets = [offset + sum(len(event["text"]) for event in events[:place]) for place in range(len(events))]
        told: list[Json] | None = None
        if count > 0:
            answers = await self._ask_for_others(alternatives_of(source, ids, len(ids) - len(events)), receive)
            told = [
                _likeliest(self.served, answer, count, event) for answer, event in zip(answers, events, strict=True)
            ]
        return {
            "tokens": [event["token"] for event in events],
            "token_logprobs": [event["logprob"] for event in events],
            "top_logprobs": told,
            "text_offset": offsets,
        }

    async def _ask_for_others(self, questions: list[NextToken], receive: Receive) -> list[Distribution]:
        """A few at a time, so that they find room in any queue."""
        answers: list[Distribution] = []
        few = min(FEW, self.served.description.max_queue_requests)
        while questions:
            found = await ask(self.served.engine, questions[:few], self.until, receive)
            answers += cast(list[Distribution], found)
            questions = questions[few:]
        return answers

    def choice(self, index: int, events: Sequence[Json], logprobs: Json | None, reason: str | None) -> Json:
        text = "".join(event["text"] for event in events)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason and REASONS[reason]}

    def usage(self, answers: Sequence[Generated]) -> Json:
        """The tokens of all that was decoded, samples that are not answered included."""
        prompt = sum(len(source) for source in self.plan.sources)
        completion = sum(len(h.logprobs) for answer in answers for h in answer.hypotheses)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def chunk(self, choices: list[Json], usage: Json | None = None) -> bytes:
        counts = self.wanted.stream_options is not None and self.wanted.stream_options.include_usage
        return _event({**self._head, "choices": choices, **({"usage": usage} if counts else {})})

    def note(self, usage: Json, texts: list[str]) -> None:
        """What the log says of it."""
        self._record.facts |= {
            "inputs": len(self.plan.sources),
            "source_tokens": usage["prompt_tokens"],
            "target_tokens": usage["completion_tokens"],
        }
        if self.log_texts:
            self._record.facts |= {"texts": self.wanted.prompt, "answers": texts}


class AllEvents:
    """The streams of all tasks, which are decoded together; a refusal of one is a refusal of all."""

    def __init__(self, completion: Completion, receive: Receive) -> None:
        self.each: list[Events] = []
        try:
            for task in completion.plan.tasks:
                self.each.append(Events(completion.served.engine, task, completion.until, receive))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for events in self.each:
            events.close()


async def _chunks(completion: Completion, events: AllEvents, receive: Receive) -> AsyncIterator[bytes]:
    """Every choice's chunks, one choice after the other, then the usage, if asked for."""
    answers: list[Generated] = []
    texts: list[str] = []
    for index, (task, stream) in enumerate(zip(completion.plan.tasks, events.each, strict=True)):
        choice = _Choice(completion, index, task, receive)
        while isinstance(event := await stream.get(), NewTokens):
            yield await choice.more(event)
        answers.append(cast(Generated, event))
        yield await choice.last(answers[-1].hypotheses[0])
        texts.append(choice.text)
    usage = completion.usage(answers)
    completion.note(usage, texts)
    if completion.wanted.stream_options is not None and completion.wanted.stream_options.include_usage:
        yield completion.chunk([], usage)
    yield DONE


class _Choice:
    """One choice as it is streamed."""

    def __init__(self, completion: Completion, index: int, task: Generate, receive: Receive) -> None:
        self._completion, self._index, self._source, self._receive = completion, index, task.source, receive
        self._streamed = StreamedText(completion.served)
        self._ids: Ids = ()
        self._sent = 0
        self.text = ""

    async def more(self, new: NewTokens) -> bytes:
        self._ids += new.ids
        events = list(self._streamed.add(new))
        return await self._chunk(events, None) if events else b""

    async def last(self, best: Hypothesis) -> bytes:
        self._ids = best.ids
        return await self._chunk(list(self._streamed.finish(best)), best.finish_reason)

    async def _chunk(self, events: list[Json], reason: str | None) -> bytes:
        self._sent += len(events)
        sent = self._ids[: self._sent]
        logprobs = await self._completion.logprobs(self._source, sent, events, len(self.text), self._receive)
        choice = self._completion.choice(self._index, events, logprobs, reason)
        self.text += choice["text"]
        return self._completion.chunk([choice])


def _likeliest(served: Served, answer: Distribution, count: int, event: Json) -> Json:
    """The likeliest tokens in a place, and the one that came."""
    best = np.argsort(-answer.logprobs, kind="stable")[:count]
    found = {served.tokens[index]: float(answer.logprobs[index]) for index in best.tolist()}
    return found if event["token"] in found else {**found, event["token"]: event["logprob"]}


def _check_name(name: str, served: Served) -> None:
    if name != served.name:
        raise UnknownModelError(f"There is no model {name[:100]!r} here; there is {served.name!r}.", "model")


def _json(answer: Json, status: int = 200) -> Response:
    return Response(encode(answer), status, media_type="application/json")


def _event(data: Any) -> bytes:
    return b"data: " + encode(data) + b"\n\n"


def _error_event(error: Json) -> bytes:
    return _event(error)
