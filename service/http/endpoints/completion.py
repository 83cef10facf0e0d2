"""Answers completion requests, whole or streamed, for both OpenAI endpoints: completions and chat."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import cast

from starlette.responses import Response

from attendant.service.engine.tasks import Generated, NewTokens
from attendant.service.errors import DeadlineError
from attendant.service.http.building import extended
from attendant.service.http.context import RequestContext
from attendant.service.http.responses import encoded_response
from attendant.service.http.streaming import EventStream
from attendant.service.http.submission import TaskStreams
from attendant.service.openai.answers import COMPLETION, DONE, Completion, Shape, StreamedChoice, event
from attendant.service.openai.completion_plan import plan_completion
from attendant.service.openai.schemas import CompletionRequest
from attendant.service.requests.content import Json
from attendant.service.requests.planning import deadline


async def answer_completion(
    request: CompletionRequest, context: RequestContext, shape: Shape = COMPLETION, field: str = "prompt"
) -> Response:
    """`field` is the name of the texts' field in the client's request, for error messages."""
    settings = context.settings
    characters = sum(map(len, request.prompt))
    until = deadline(None, context.record.arrival, settings)
    served, plan = await context.plan(
        request.model, characters, until, lambda served: plan_completion(request, served, settings, field)
    )
    completion = Completion(served, plan, request, context.record.id, shape, note=partial(_note, context, request))
    if request.stream:
        streams = context.stream(served, plan.tasks, until, field)
        return EventStream(stream_completion(completion, streams), streams, event)
    outcomes = await context.run(served, plan.tasks, until, field)
    results = [outcome for outcome in outcomes if isinstance(outcome, Generated)]
    tokens = sum(len(hypothesis.ids) for result in results for hypothesis in result.hypotheses)
    tokens *= 1 + (plan.logprobs or 0)
    return await encoded_response(lambda check: completion.content(outcomes, check), tokens, context, extended(until))


def _note(context: RequestContext, request: CompletionRequest, usage: Json, texts: list[str]) -> None:
    """Add what the request's log line says of it."""
    record = context.record
    record.log_fields |= {
        "inputs": len(request.prompt),
        "source_tokens": usage["prompt_tokens"],
        "target_tokens": usage["completion_tokens"],
    }
    if context.settings.log_texts:
        record.log_fields |= {"texts": request.prompt, "answers": texts}


async def stream_completion(completion: Completion, streams: TaskStreams) -> AsyncIterator[bytes]:
    """Every choice's chunks, one choice after the other, then the usage, if asked for."""
    results: list[Generated] = []
    texts: list[str] = []
    late = b""  # chunks of choices without a result, held back: if no choice has one, the answer is an error
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
