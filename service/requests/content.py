"""From the engine's results to the JSON content of answers, shared by HTTP, bulk files and the Python API."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_core import to_json

from service.engine.distributions import top_tokens
from service.engine.tasks import (
    Distribution,
    Generate,
    Generated,
    Hypothesis,
    Ids,
    NewTokens,
    Outcome,
    Scored,
    TokenLogprobs,
)
from service.errors import ServiceError
from service.requests.served import ServedModel
from service.tokenizer import UNFINISHED

log = logging.getLogger("attendant")

Json = dict[str, Any]


def encode(content: Json) -> bytes:
    return to_json(content, inf_nan_mode="null")


def error_content(error: ServiceError) -> Json:
    return {"type": error.type, "message": error.message, "field": error.field}


def opaque_error(request_id: str) -> ServiceError:
    """The error that a client gets for an internal failure; the log has the details."""
    return ServiceError(f"Something went wrong in the service; its log tells more under request id {request_id}.")


def generate_content(
    served: ServedModel, tasks: Sequence[Generate], outcomes: Sequence[Outcome], logprobs: bool, request_id: str = ""
) -> Json:
    """The answer to tasks of which at least one has a result."""
    results = [outcome for outcome in outcomes if isinstance(outcome, Generated)]
    return {
        "model": served.name,
        "outputs": [output_content(served, outcome, logprobs, request_id) for outcome in outcomes],
        "usage": {
            "source_tokens": sum(len(task.source) for task in tasks),
            "target_tokens": sum(len(h.logprobs) for result in results for h in result.hypotheses),
        },
        "timing": {
            "queue_ms": milliseconds(max(result.timing.queue for result in results)),
            "encode_ms": milliseconds(max(result.timing.encode for result in results)),
            "decode_ms": milliseconds(max(result.timing.decode for result in results)),
        },
    }


def output_content(served: ServedModel, outcome: Outcome, logprobs: bool, request_id: str = "") -> Json:
    if isinstance(outcome, Generated):
        return {"hypotheses": [hypothesis_content(served, hypothesis, logprobs) for hypothesis in outcome.hypotheses]}
    assert isinstance(outcome, Exception)
    if not isinstance(outcome, ServiceError):
        log.error("an input of request %s failed", request_id, exc_info=outcome)
        outcome = opaque_error(request_id)
    return {"hypotheses": [], "error": error_content(outcome)}


def next_token_content(served: ServedModel, result: Distribution, top_k: int, temperature: float) -> Json:
    top = top_tokens(result.logprobs, top_k, temperature)
    return {
        "tokens": [
            {
                "id": index,
                "token": served.tokens[index],
                "text": served.token_texts[index],
                "probability": probability,
                "logprob": logprob,
            }
            for index, probability, logprob in zip(top.ids, top.probabilities, top.logprobs, strict=True)
        ],
        "entropy": top.entropy,
        "prefix_logprob": sum(result.prefix_logprobs, 0.0),
    }


def score_content(served: ServedModel, target: Ids, result: Scored) -> Json:
    return {
        "logprob": sum(result.logprobs),
        "tokens": [
            {"token": served.tokens[index], "text": served.token_texts[index], "logprob": logprob}
            for index, logprob in zip((*target, served.end), result.logprobs, strict=True)
        ],
    }


def hypothesis_content(served: ServedModel, found: Hypothesis, logprobs: bool) -> Json:
    return {
        "text": served.engine.target_tokenizer.decode(found.ids),
        "tokens": [served.tokens[index] for index in found.ids],
        **({} if served.readable else {"token_texts": [served.token_texts[index] for index in found.ids]}),
        "score": found.score,
        "logprobs": found.logprobs if logprobs else None,
        "finish_reason": found.finish_reason,
    }


def milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


class StreamedText:
    """Token events whose texts, joined, are the text of the answer.

    A token that ends inside a character is held back until the next one.
    """

    def __init__(self, served: ServedModel) -> None:
        self._served = served
        self.ids: list[int] = []
        self._logprobs: list[float] = []
        self._sent = 0
        self._text = ""
        self.top_logprobs: list[TokenLogprobs] = []  # of each token so far, where they were recorded

    def add(self, new: NewTokens) -> Iterator[Json]:
        self.top_logprobs += new.top_logprobs
        for index, logprob in zip(new.ids, new.logprobs, strict=True):
            self.ids.append(index)
            self._logprobs.append(logprob)
            text = self._served.engine.target_tokenizer.decode(self.ids)
            if not text.endswith(UNFINISHED):
                yield from self._release(text)

    def finish(self, best: Hypothesis) -> Iterator[Json]:
        """The events of the answer that were not sent yet."""
        new = slice(len(self.ids), len(best.ids))
        yield from self.add(NewTokens(0, best.ids[new], best.logprobs[new], best.top_logprobs[new]))
        yield from self._release(self._served.engine.target_tokenizer.decode(self.ids))

    def _release(self, text: str) -> Iterator[Json]:
        last = len(self.ids) - 1
        for place in range(self._sent, len(self.ids)):
            piece = text[len(self._text) :] if place == last else ""
            token = self._served.tokens[self.ids[place]]
            yield {"token": token, "text": piece, "logprob": self._logprobs[place], "index": place}
        self._sent, self._text = len(self.ids), text
