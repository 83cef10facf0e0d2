"""HTTP responses: JSON as bytes, and the descriptions of the service and its models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from starlette.responses import JSONResponse, Response

from attendant_version import VERSION
from service.http.models import Model
from service.http.registry import Models
from service.languages import Languages
from service.requests.content import Json, encode
from service.requests.openai_schemas import ModelListResponse, ModelResponse
from service.requests.schemas import InfoResponse, LanguagesResponse
from service.requests.served import ServedModel
from service.settings import Settings

CREATED = int(time.time())  # answered for every model, since bundles have no date
LONG_RESPONSE = 1000  # tokens, from which on building a response takes a millisecond or more


def json_response(content: Json) -> Response:
    """Encoded directly: FastAPI's own way through a response model costs more (docs/decisions/009)."""
    return Response(encode(content) + b"\n", media_type="application/json")


class JSONLine(JSONResponse):
    """JSON with a final newline, so that a terminal's prompt begins on the next line."""

    def render(self, content: Any) -> bytes:
        return super().render(content) + b"\n"


async def encoded_response(content: Callable[[], Json], tokens: int) -> Response:
    """The JSON response of `content()`, which runs in a thread if there are many tokens."""
    if tokens <= LONG_RESPONSE:
        return json_response(content())
    return await asyncio.to_thread(lambda: json_response(content()))


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
