"""Answers completion requests, whole or streamed, in the format of either OpenAI endpoint: completions or chat."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from starlette.responses import Response

from service.engine.tasks import Generated, Hypothesis, NewTokens, Outcome, TokenLogprobs
from service.errors import DeadlineError
from service.http.context import RequestContext
from service.http.responses import encoded_response
from service.http.streaming import EventStream
from service.http.submission import TaskStreams, run_tasks
from service.requests.completion_plan import CompletionPlan, plan_completion
from service.requests.content import Json, StreamedText, encode
from service.requests.openai_schemas import CompletionRequest
from service.requests.planning import deadline
from service.requests.served import ServedModel

DONE = b"data: [DONE]\n\n"
FINISH_REASONS = {"stop": "stop", "length": "length", "deadline": "length"}


@dataclass(frozen=True)
class Shape:
    """How the two endpoints' answers differ.

    `choice(choice, streamed, first)` converts a completion's choice; `first` is for the first chunk of that choice.
    """

    id: str
    object: str
    chunk_object: str
    choice: Callable[[Json, bool, bool], Json]


COMPLETION = Shape("cmpl-", "text_completion", "text_completion", lambda choice, *_: choice)


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
        streams = TaskStreams(served.engine, plan.tasks, until, context.receive, field)
        return EventStream(stream_completion(completion, streams), streams, event)
    outcomes = await run_tasks(served.engine, plan.tasks, until, context.receive, field)
    results = [outcome for outcome in outcomes if isinstance(outcome, Generated)]
    tokens = sum(len(hypothesis.ids) for result in results for hypothesis in result.hypotheses)
    return await encoded_response(lambda: completion.content(outcomes), tokens)


class Completion:
    """Builds the answer to one request; `note` is called with its usage and its texts."""

    def __init__(
        self,
        served: ServedModel,
        plan: CompletionPlan,
        request: CompletionRequest,
        request_id: str,
        shape: Shape = COMPLETION,
        created: int | None = None,  # Unix time; None: now
        note: Callable[[Json, list[str]], None] = lambda usage, texts: None,  # noqa: ARG005
    ) -> None:
        self.served, self.plan, self.note, self._shape = served, plan, note, shape
        options = request.stream_options
        self._begun: set[int] = set()  # indices of the choices with a chunk sent
        self.includes_usage = options is not None and options.include_usage
        self._head = {
            "id": f"{shape.id}{request_id}",
            "object": shape.chunk_object if request.stream else shape.object,
            "created": int(time.time()) if created is None else created,
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
        return {
            **self._head,
            "choices": [self._shape.choice(choice, False, True) for choice in choices],
            "usage": usage,
        }

    def _best(self, found: list[Hypothesis]) -> list[Hypothesis]:
        """The hypotheses to answer: all in their order, or the best by score if there are more than choices."""
        if len(found) > self.plan.choices:
            found = sorted(found, key=lambda hypothesis: -hypothesis.score)
        return found[: self.plan.choices]

    def usage(self, results: Sequence[Generated]) -> Json:
        """Token counts of all hypotheses, including samples that best_of leaves out of the answer."""
        prompt = self.plan.prompt_tokens
        completion = sum(len(h.logprobs) for result in results for h in result.hypotheses)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def chunk(self, choices: list[Json], usage: Json | None = None) -> bytes:
        shaped = [self._shape.choice(choice, True, choice["index"] not in self._begun) for choice in choices]
        self._begun.update(choice["index"] for choice in choices)
        return event({**self._head, "choices": shaped, **({"usage": usage} if self.includes_usage else {})})


def _note(context: RequestContext, request: CompletionRequest, usage: Json, texts: list[str]) -> None:
    """Add what the request's log line says of it."""
    record = context.record
    record.facts |= {
        "inputs": len(request.prompt),
        "source_tokens": usage["prompt_tokens"],
        "target_tokens": usage["completion_tokens"],
    }
    if context.settings.log_texts:
        record.facts |= {"texts": request.prompt, "answers": texts}


class StreamedChoice:
    """One choice, whole or as it is streamed."""

    def __init__(self, completion: Completion, index: int) -> None:
        self._completion, self._index = completion, index
        self._streamed = StreamedText(completion.served)
        self.text = ""

    def more(self, new: NewTokens) -> Json | None:
        """The choice of a chunk with new tokens; None while they end inside a character."""
        events = list(self._streamed.add(new))
        return self._choice(events, None) if events else None

    def last(self, best: Hypothesis) -> Json:
        """The rest of the answer that was not sent yet; token by token only if log-probabilities are asked for."""
        if self._completion.plan.logprobs is not None:
            return self._choice(list(self._streamed.finish(best)), best.finish_reason)
        text = self._completion.served.engine.target_tokenizer.decode(best.ids)
        return self._choice([{"text": text[len(self.text) :]}], best.finish_reason)

    def late(self) -> Json:
        """The end of a choice whose deadline passed before it had a result."""
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


def _result_or_late(outcome: Outcome) -> Generated | None:
    """None where the deadline passed; any other failure is raised."""
    if isinstance(outcome, DeadlineError):
        return None
    if isinstance(outcome, Exception):
        raise outcome
    return cast(Generated, outcome)


def _top_logprobs(served: ServedModel, recorded: TokenLogprobs, text: str, logprob: float) -> Json:
    """Log-probabilities of the most probable tokens at a position, and of the one chosen, by their texts."""
    found: Json = {}
    for index, other in recorded:  # most probable first; of two tokens with one text the first is kept
        found.setdefault(served.token_texts[index], other)
    found.setdefault(text, logprob)
    return found


def event(data: Any) -> bytes:
    return b"data: " + encode(data) + b"\n\n"
