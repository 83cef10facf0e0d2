"""From the engine's results to the JSON of the API."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic_core import to_json
from starlette.responses import JSONResponse, Response

from attendant_version import VERSION
from service.engine.distributions import top_tokens
from service.engine.tasks import Distribution, Generate, Generated, Hypothesis, Ids, NewTokens, Scored, TokenLogprobs
from service.errors import ServiceError
from service.http.models import Model, ServedModel
from service.http.openai_schemas import ModelListResponse, ModelResponse
from service.http.registry import Models
from service.http.schemas import InfoResponse, LanguagesResponse
from service.http.submission import Outcome
from service.languages import Languages
from service.settings import Settings
from service.tokenizer import UNFINISHED

Json = dict[str, Any]
CREATED = int(time.time())  # of the models, which have no date of their own
LONG_RESPONSE = 1000  # tokens, from which on building a response takes a millisecond or more

log = logging.getLogger("attendant")


def encode(content: Json) -> bytes:
    return to_json(content, inf_nan_mode="null")


def json_response(content: Json) -> Response:
    """Written straight to JSON: FastAPI's own way through a response model costs more (docs/decisions/009)."""
    return Response(encode(content) + b"\n", media_type="application/json")


class JSONLine(JSONResponse):
    """JSON that ends its line, so that a terminal's prompt begins on the next."""

    def render(self, content: Any) -> bytes:
        return super().render(content) + b"\n"


async def encoded_response(content: Callable[[], Json], tokens: int) -> Response:
    """The response of what `content` makes, which runs in a thread where it has many tokens."""
    if tokens <= LONG_RESPONSE:
        return json_response(content())
    return await asyncio.to_thread(lambda: json_response(content()))


def error_content(error: ServiceError) -> Json:
    return {"type": error.type, "message": error.message, "field": error.field}


def opaque_error(request_id: str) -> ServiceError:
    """What a client is told of a failure; the log has the rest."""
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


def languages_response(languages: Languages) -> LanguagesResponse:
    return LanguagesResponse(
        source=languages.source,
        target=languages.target,
        default_source=languages.source_language,
        default_target=languages.target_language,
    )


def info_response(served: ServedModel, settings: Settings) -> InfoResponse:
    described = served.description
    return InfoResponse(
        version=VERSION,
        model=served.name,
        bundle={
            "name": described.model,
            "sizes": asdict(described.sizes),
            "variants": list(described.variants),
            "special_ids": dict(described.special_ids),
            "produced_by": dict(described.produced_by),
        },
        defaults=served.defaults,
        languages=languages_response(served.languages),
        precision=described.precision,
        provider=described.provider,
        provider_fallback=described.provider_fallback,
        threads=described.threads,
        lanes=described.lanes,
        lanes_reason=described.lanes_reason,
        limits={
            "max_source_length": described.max_source_length,
            "max_target_length": described.max_target_length,
            "max_rows": described.max_rows,
            "max_queue_requests": described.max_queue_requests,
            "max_queue_tokens": described.max_queue_tokens,
            "max_inputs": settings.max_inputs,
            "max_beam_size": settings.max_beam_size,
            "max_body_bytes": settings.max_body_bytes,
            "max_explain_values": settings.max_explain_values if settings.explain else 0,
            "timeout_ms": settings.timeout_ms,
        },
        certificate=asdict(described.certificate),
        examples=list(described.examples),
    )


def model_list_response(models: Models) -> ModelListResponse:
    return ModelListResponse(object="list", data=[model_response(models, model) for model in models.list()])


def model_response(models: Models, model: Model) -> ModelResponse:
    sizes: Mapping[str, int] = {}
    languages = Languages()
    if model.served is not None:
        sizes, languages = asdict(model.served.description.sizes), model.served.languages
    elif model.bundle is not None:
        sizes, languages = model.bundle.sizes, model.bundle.languages
    return ModelResponse(
        id=model.name,
        object="model",
        created=CREATED,
        owned_by="attendant",
        default=models.is_default(model),
        state=model.state,
        reason=model.failure,
        sizes=dict(sizes) if sizes else None,
        languages=languages_response(languages),
    )


class StreamedText:
    """Token events whose texts, one after the other, are the text of the answer.

    A token that ends inside a character waits for the next one.
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
        """What of the answer was not sent yet."""
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
