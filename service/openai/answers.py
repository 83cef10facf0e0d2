"""Answers in the format of either OpenAI endpoint: completions or chat, whole or in chunks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from attendant.service.engine.tasks import Generated, Hypothesis, NewTokens, Outcome, TokenLogprobs
from attendant.service.errors import DeadlineError
from attendant.service.openai.completion_plan import CompletionPlan
from attendant.service.openai.schemas import CompletionRequest
from attendant.service.requests.content import Check, Json, encode, no_check, terms_content
from attendant.service.requests.served import ServedModel
from attendant.service.requests.streamed import StreamedText

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

    def content(self, outcomes: Sequence[Outcome], check: Check = no_check) -> Json:
        """The whole answer. A prompt whose deadline passed has empty choices; any other failure is raised."""
        results = [_result_or_late(outcome) for outcome in outcomes]
        choices: list[Json] = []
        per_prompt = self.plan.tasks_per_prompt
        for first in range(0, len(results), per_prompt):
            found = [h for result in results[first : first + per_prompt] for h in (result.hypotheses if result else ())]
            best = self._best(found)
            for hypothesis in best:
                check()
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
            events = list(self._streamed.finish(best))
        else:
            text = self._completion.served.engine.target_tokenizer.decode(best.ids)
            events = [{"text": text[len(self.text) :]}]
        return self._choice(events, best.finish_reason) | terms_content(best)

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
