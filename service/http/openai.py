"""The OpenAI dialect: models and completions, so that OpenAI's own client works against this service."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, cast

from fastapi import APIRouter, Path
from starlette.responses import Response

from service.engine.tasks import Generated, Hypothesis, NewTokens, TokenLogprobs
from service.errors import DeadlineError, InvalidFieldError, ServiceError
from service.http.context import Context, RequestContext
from service.http.errors import UnknownModelError
from service.http.middleware import native_error
from service.http.models import ServedModel, plan_with
from service.http.native import ERRORS, Responses
from service.http.openai_schemas import (
    CompletionRequest,
    CompletionResponse,
    ModelListResponse,
    ModelResponse,
    OpenAIErrorResponse,
)
from service.http.planning import CompletionPlan, deadline, plan_completion
from service.http.responses import Json, StreamedText, encode, encoded_response
from service.http.route import DirectRoute
from service.http.streaming import EventStream, stream_declaration
from service.http.submission import Outcome, TaskStreams, run_tasks

DONE = b"data: [DONE]\n\n"
FINISH_REASONS = {"stop": "stop", "length": "length", "deadline": "length"}
ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
MODELS, COMPLETIONS = "/v1/models", "/v1/completions"
CREATED = int(time.time())  # of the models, which have no date of their own
STREAMED = "JSON: chunks as OpenAI sends them; the last is [DONE]"

router = APIRouter()
direct = APIRouter(route_class=DirectRoute)


def error_format(path: str, error: ServiceError) -> tuple[int, Json]:
    """An error as OpenAI's clients expect it on their paths, as the rest of the API has it elsewhere."""
    if path != COMPLETIONS and path != MODELS and not path.startswith(MODELS + "/"):
        return native_error(path, error)
    status = 400 if isinstance(error, InvalidFieldError) else error.status
    kind = "server_error" if status >= 500 else ERROR_TYPES.get(status, "invalid_request_error")
    code = "model_not_found" if isinstance(error, UnknownModelError) else error.type
    return status, {"error": {"message": error.message, "type": kind, "param": error.field, "code": code}}


def _errors(*statuses: int, **other: str) -> Responses:
    """Without a 422 of its own, FastAPI would declare one that is never answered: "4XX" stands for the rest."""
    described = {**{str(status): ERRORS[status] for status in statuses}, "4XX": "Any other refusal.", **other}
    return {status: {"model": OpenAIErrorResponse, "description": text} for status, text in described.items()}


NO_SUCH_MODEL = {"404": "There is no model of this name."}


@router.get(MODELS, responses=_errors(401, 500, 503))
async def list_models(context: Context) -> ModelListResponse:
    """The model that is served, as OpenAI lists models."""
    return ModelListResponse(object="list", data=[_model(context.models.get())])


@router.get(MODELS + "/{name:path}", responses=_errors(401, 500, 503, **NO_SUCH_MODEL))
async def get_model(
    name: Annotated[str, Path(description="the model's name", min_length=1)], context: Context
) -> ModelResponse:
    """The model of this name."""
    context.record.endpoint = MODELS
    served = context.models.get()
    _check_name(name, served)
    return _model(served)


@direct.post(
    COMPLETIONS,
    response_model=CompletionResponse,
    responses={
        **_errors(
            *(status for status in ERRORS if status not in (400, 422)),
            **NO_SUCH_MODEL,
            **{"400": "The body is not JSON, or a field is unknown, wrong or cannot be honoured."},
        ),
        200: stream_declaration(STREAMED),
    },
)
async def create_completion(request: CompletionRequest, context: Context) -> Response:
    """Targets for one prompt or many, as OpenAI completes them: the prompt is the source."""
    settings = context.settings
    _check_name(request.model, context.models.get())
    characters = sum(map(len, request.prompt))
    served, plan = await plan_with(
        context.models, characters, lambda served: plan_completion(request, served, settings)
    )
    until = deadline(None, context.record.arrival, settings)
    completion = Completion(served, plan, request, context)
    if request.stream:
        streams = TaskStreams(served.engine, plan.tasks, until, context.receive, "prompt")
        return EventStream(_stream(completion, streams), streams, _event)
    outcomes = await run_tasks(served.engine, plan.tasks, until, context.receive, "prompt")
    results = [outcome for outcome in outcomes if isinstance(outcome, Generated)]
    tokens = sum(len(hypothesis.ids) for result in results for hypothesis in result.hypotheses)
    return await encoded_response(lambda: completion.content(outcomes), tokens)


class Completion:
    """One request on its way to its answer."""

    def __init__(
        self, served: ServedModel, plan: CompletionPlan, request: CompletionRequest, context: RequestContext
    ) -> None:
        self.served, self.plan, self._request, self._context = served, plan, request, context
        options = request.stream_options
        self.includes_usage = options is not None and options.include_usage
        self._head = {
            "id": f"cmpl-{context.record.id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": served.name,
        }

    def content(self, outcomes: Sequence[Outcome]) -> Json:
        """The whole answer. A prompt whose deadline passed has empty choices; any other failure is raised."""
        results = [_result_or_late(outcome) for outcome in outcomes]
        choices: list[Json] = []
        per_prompt = self.plan.tasks_per_prompt
        for first in range(0, len(results), per_prompt):
            found = [h for result in results[first : first + per_prompt] for h in (result.hypotheses if result else ())]
            best = self._best(found)
            for hypothesis in best:
                choice = StreamedChoice(self, len(choices))
                choices.append(choice.last(hypothesis))
            for _ in range(self.plan.choices - len(best)):
                choices.append(StreamedChoice(self, len(choices)).late())
        usage = self.usage([result for result in results if result is not None])
        self.note(usage, [choice["text"] for choice in choices])
        return {**self._head, "choices": choices, "usage": usage}

    def _best(self, found: list[Hypothesis]) -> list[Hypothesis]:
        """Samples in their own order, unless some of them are to be left out."""
        if len(found) > self.plan.choices:
            found = sorted(found, key=lambda hypothesis: -hypothesis.score)
        return found[: self.plan.choices]

    def usage(self, results: Sequence[Generated]) -> Json:
        """The tokens of all that was decoded, samples that are not answered included."""
        prompt = self.plan.prompt_tokens
        completion = sum(len(h.logprobs) for result in results for h in result.hypotheses)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def chunk(self, choices: list[Json], usage: Json | None = None) -> bytes:
        return _event({**self._head, "choices": choices, **({"usage": usage} if self.includes_usage else {})})

    def note(self, usage: Json, texts: list[str]) -> None:
        """What the log says of it."""
        record = self._context.record
        record.facts |= {
            "inputs": len(self._request.prompt),
            "source_tokens": usage["prompt_tokens"],
            "target_tokens": usage["completion_tokens"],
        }
        if self._context.settings.log_texts:
            record.facts |= {"texts": self._request.prompt, "answers": texts}


class StreamedChoice:
    """One choice, whole or as it is streamed."""

    def __init__(self, completion: Completion, index: int) -> None:
        self._completion, self._index = completion, index
        self._streamed = StreamedText(completion.served)
        self.text = ""

    def more(self, new: NewTokens) -> Json | None:
        """What new tokens add, if it is anything that can be sent."""
        events = list(self._streamed.add(new))
        return self._choice(events, None) if events else None

    def last(self, best: Hypothesis) -> Json:
        return self._choice(list(self._streamed.finish(best)), best.finish_reason)

    def late(self) -> Json:
        """The end of a choice whose deadline passed before it had anything."""
        return self._choice([], "deadline")

    def _choice(self, events: list[Json], reason: str | None) -> Json:
        logprobs = self._logprobs(events)
        text = "".join(event["text"] for event in events)
        self.text += text
        finish_reason = None if reason is None else FINISH_REASONS[reason]
        return {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    def _logprobs(self, events: list[Json]) -> Json | None:
        count = self._completion.plan.logprobs
        if count is None:
            return None
        offsets, offset = [], len(self.text)
        for event in events:
            offsets.append(offset)
            offset += len(event["text"])
        served = self._completion.served
        texts = [served.token_texts[self._streamed.ids[event["index"]]] for event in events]
        top = None
        if count > 0:
            recorded = self._streamed.top_logprobs
            top = [
                _top_logprobs(served, recorded[event["index"]], text, event["logprob"])
                for event, text in zip(events, texts, strict=True)
            ]
        return {
            "tokens": texts,
            "token_logprobs": [event["logprob"] for event in events],
            "top_logprobs": top,
            "text_offset": offsets,
        }


async def _stream(completion: Completion, streams: TaskStreams) -> AsyncIterator[bytes]:
    """Every choice's chunks, one choice after the other, then the usage, if asked for."""
    results: list[Generated] = []
    texts: list[str] = []
    late = b""  # chunks of choices that came to nothing, held back until another one has something
    failure: DeadlineError | None = None
    for index in range(len(completion.plan.tasks)):
        choice = StreamedChoice(completion, index)
        try:
            while isinstance(event := await streams.next(index), NewTokens):
                if (part := choice.more(event)) is not None:
                    yield late + completion.chunk([part])
                    late = b""
            results.append(cast(Generated, event))
            yield late + completion.chunk([choice.last(results[-1].hypotheses[0])])
            late = b""
        except DeadlineError as error:
            failure = error
            late += completion.chunk([choice.late()])
        texts.append(choice.text)
    if failure is not None and not results:
        raise failure
    usage = completion.usage(results)
    completion.note(usage, texts)
    yield late + (completion.chunk([], usage) if completion.includes_usage else b"") + DONE


def _result_or_late(outcome: Outcome) -> Generated | None:
    """None where the deadline passed; any other failure is raised."""
    if isinstance(outcome, DeadlineError):
        return None
    if isinstance(outcome, Exception):
        raise outcome
    return cast(Generated, outcome)


def _top_logprobs(served: ServedModel, recorded: TokenLogprobs, text: str, logprob: float) -> Json:
    """The most probable tokens in a place, and the one that came, by their texts."""
    found: Json = {}
    for index, other in recorded:  # most probable first; of two tokens with one text the first is told
        found.setdefault(served.token_texts[index], other)
    found.setdefault(text, logprob)
    return found


def _check_name(name: str, served: ServedModel) -> None:
    if name != served.name:
        raise UnknownModelError(f"There is no model {name[:100]!r} here; there is {served.name!r}.", "model")


def _model(served: ServedModel) -> ModelResponse:
    return ModelResponse(id=served.name, object="model", created=CREATED, owned_by="attendant")


def _event(data: Any) -> bytes:
    return b"data: " + encode(data) + b"\n\n"
