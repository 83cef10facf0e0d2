"""HTTP responses: JSON as bytes, and the descriptions of the service and its models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from attendant.common.version import VERSION
from attendant.service.http.context import RequestContext
from attendant.service.models.model import Model
from attendant.service.models.registry import Models
from attendant.service.openai.schemas import ModelListResponse, ModelResponse
from attendant.service.requests.content import Check, Json, encode, encode_long, no_check
from attendant.service.requests.schemas import InfoResponse, LanguagesResponse
from attendant.service.requests.served import ServedModel
from attendant.service.settings import Settings
from attendant.service.text.languages import Languages

CREATED = int(time.time())  # answered for every model, since bundles have no date
PIECE = 64 * 2**10  # bytes of an answer that are sent at once
TOKEN_BYTES = 260  # of a token in an answer that is being built: its JSON, and the numbers that it is made of
LONG_RESPONSE = 1000  # tokens, from which on building a response takes a millisecond or more


def json_response(content: Json | list[Json]) -> Response:
    """Encoded directly: FastAPI's own way through a response model costs more (docs/decisions/009)."""
    return Response(encode(content) + b"\n", media_type="application/json")


class JSONLine(JSONResponse):
    """JSON with a final newline, so that a terminal's prompt begins on the next line."""

    def render(self, content: Any) -> bytes:
        return super().render(content) + b"\n"


async def encoded_response(
    content: Callable[[Check], Json], tokens: int, context: RequestContext, deadline: float | None
) -> Response:
    """The JSON response of `content(check)`, which is built in a thread if there are many tokens."""
    if tokens <= LONG_RESPONSE:
        return json_response(content(no_check))
    context.memory.check_possible(TOKEN_BYTES * tokens, f"an answer of {tokens:,} tokens", None)
    context.memory.set("answer", TOKEN_BYTES * tokens)
    parts = await context.builder.run(lambda check: encode_long(content(check), check), deadline, context.receive)
    return LongResponse(parts, context)


class LongResponse(Response):
    """JSON that is sent part by part, each once the one before it has left: what nobody reads is held only once."""

    media_type = "application/json"

    def __init__(self, parts: list[bytes], context: RequestContext) -> None:
        parts.append(b"\n")
        size = sum(map(len, parts))
        super().__init__(headers={"content-length": str(size)})
        self._parts = pieces(parts)
        context.memory.set("answer", size)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._parts:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def pieces(parts: list[bytes]) -> Iterator[bytes]:
    """The bytes of all parts, some PIECE at a time; parts are dropped as they are used."""
    parts.reverse()
    piece = bytearray()
    while parts:
        part = memoryview(parts.pop())
        for start in range(0, len(part), PIECE):
            piece += part[start : start + PIECE]
            if len(piece) >= PIECE:
                yield bytes(piece)
                piece.clear()
    if piece:
        yield bytes(piece)


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
        glossaries={name: len(glossary) for name, glossary in described.glossaries.items()},
        precision=described.precision,
        provider=described.provider,
        provider_fallback=described.provider_fallback,
        kernels=described.kernels,
        kernels_reason=described.kernels_reason,
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
            "max_phrases": settings.max_phrases,
            "max_body_bytes": settings.max_body_bytes,
            "max_explain_values": settings.max_explain_values if settings.explain else 0,
            "timeout_ms": settings.timeout_ms,
            "max_timeout_ms": settings.max_timeout_ms,
        },
        certificate=asdict(described.certificate),
        description=described.about,
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
