"""LibreTranslate's API, so that its clients work by changing an address; switched on by a setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from attendant.service.documents.detection import Detected, detect
from attendant.service.engine.tasks import Generated
from attendant.service.errors import InvalidFieldError, RateLimitError, ServiceError, UnauthorizedError
from attendant.service.http.context import Context, RequestContext, request_context
from attendant.service.http.guard.admission import admit, check_key, nothing_at
from attendant.service.http.guard.policy import Access, Dialect, Policy, policy, policy_of
from attendant.service.http.guard.record import record_of
from attendant.service.http.responses import json_response
from attendant.service.http.route import GuardedRoute, Handle
from attendant.service.http.submission import raise_first_failure
from attendant.service.libretranslate.bodies import read_fields
from attendant.service.libretranslate.languages import Pair, is_same, listed, pair_for, pairs
from attendant.service.libretranslate.requests import AUTO, Translation, generate_request, read_translation
from attendant.service.requests.content import Json, hypothesis_content
from attendant.service.requests.documents import plan_request
from attendant.service.requests.planning import deadline
from attendant.service.text.language_codes import language_name
from attendant.service.text.languages import Languages

DOCUMENT_BYTES = 64  # as in native.py


class MissingKeyError(UnauthorizedError):
    status = 400


def libretranslate_error(error: ServiceError) -> tuple[int, Json]:
    status = {401: 403, 422: 400}.get(error.status, error.status)
    message = f"Slowdown: {error.message}" if isinstance(error, RateLimitError) else error.message
    return status, {"error": message}


LIBRETRANSLATE = Dialect(libretranslate_error)


class LibreTranslateRoute(GuardedRoute):
    """Nothing is here unless the setting says so; a key may be in the body, which is read first then."""

    def get_route_handler(self) -> Handle:
        declared, handle = policy_of(self.endpoint), self.make_handler()

        async def guarded(request: Request) -> Response:
            scope = request.scope
            record = record_of(scope)
            if not request.app.state.parts.settings.libretranslate:
                record.policy = Policy(Access.API_KEY)
                check_key(scope, record.policy)
                raise nothing_at(record.path)
            if declared.access is Access.OPEN:
                await admit(scope, declared)
                return await handle(request)
            await admit(scope, declared, key_in_body=True)
            kind = record.headers.get(b"content-type", b"").decode("latin-1")
            request.state.fields = read_fields(kind, await request.body(), request.url.query)
            _check_key(request, declared, request.state.fields)
            response: Response = await self.endpoint(request, await request_context(request))
            return response

        return guarded


def _check_key(request: Request, declared: Policy, fields: Mapping[str, Any]) -> None:
    record, key = record_of(request.scope), fields.get("api_key")
    given = record.headers.get(b"authorization") or (f"Bearer {key}".encode() if key else b"")
    try:
        check_key(request.scope, declared, given)
    except UnauthorizedError:
        if not given:
            raise MissingKeyError("Please contact the server operator to get an API key") from None
        raise UnauthorizedError("Invalid API key") from None
    if declared.names_model:
        request.app.state.parts.clients.admit(record.client)


router = APIRouter(include_in_schema=False, route_class=LibreTranslateRoute)


@router.post("/translate")
@policy(Access.API_KEY, label="/translate", names_model=True, dialect=LIBRETRANSLATE)
async def translate(request: Request, context: Context) -> Response:
    fields = request.state.fields
    settings = context.settings
    asked = read_translation(fields, settings.max_beam_size - 1)
    found = _pairs(context)
    detected = _detected(asked, found) if asked.source == AUTO else None
    source = asked.source if detected is None else detected.language
    if is_same(found, source, asked.target):
        return json_response(_content(asked, [[text] for text in asked.texts if text.strip()], detected))
    pair = pair_for(found, source, asked.target)
    texts = [text for text in asked.texts if text.strip()]
    answers: list[list[str]] = []
    if texts:
        native = generate_request(asked, texts, pair)
        characters = sum(map(len, texts))
        context.memory.set("document", DOCUMENT_BYTES * characters)
        until = deadline(None, context.record.arrival, settings)
        served, plan = await context.plan(
            pair.model, characters, until, lambda served: plan_request(native, served, settings)
        )
        outcomes = plan.in_order(await context.run(served, plan.tasks, until, "q"))
        raise_first_failure(outcomes)
        results = [outcome for outcome in outcomes if isinstance(outcome, Generated)]
        answers = [[hypothesis_content(served, h, False)["text"] for h in result.hypotheses] for result in results]
        context.record.log_fields["target_tokens"] = sum(len(h.logprobs) for each in results for h in each.hypotheses)
    return json_response(_content(asked, answers, detected))


def _content(asked: Translation, answers: list[list[str]], detected: Detected | None) -> Json:
    left = iter(answers)
    found = [next(left) if text.strip() else [text] for text in asked.texts]
    best = [each[0] for each in found]
    others = [[text for text in dict.fromkeys(each[1:]) if text != each[0]] for each in found]
    content: Json = {"translatedText": best if asked.batch else best[0]}
    if detected is not None:
        language = _detection(detected)
        content["detectedLanguage"] = [language] * len(found) if asked.batch else language
    if asked.alternatives:
        content["alternatives"] = others if asked.batch else others[0]
    return content


@router.post("/detect")
@policy(Access.API_KEY, label="/detect", dialect=LIBRETRANSLATE)
async def detect_language(request: Request, context: Context) -> Response:
    text = request.state.fields.get("q")
    if not isinstance(text, str) or not text:
        raise InvalidFieldError("Invalid request: missing q parameter")
    codes = sorted({pair.source for pair in _pairs(context)})
    found = detect(text, codes if len(codes) > 1 else None, most=5)
    return json_response(list(map(_detection, found)))


@router.get("/languages")
@policy(Access.OPEN, dialect=LIBRETRANSLATE)
async def languages(context: Context) -> Response:
    return json_response(listed(_pairs(context)))


@router.get("/frontend/settings")
@policy(Access.OPEN, dialect=LIBRETRANSLATE)
async def frontend_settings(context: Context) -> Response:
    keys = bool(context.settings.api_keys)
    codes = sorted({pair.target for pair in _pairs(context)})
    target = {"code": codes[0], "name": language_name(codes[0])} if codes else {"code": "en", "name": "English"}
    return json_response(
        {
            "apiKeys": keys,
            "charLimit": -1,
            "filesTranslation": False,
            "frontendTimeout": 500,
            "keyRequired": keys,
            "language": {"source": {"code": AUTO, "name": "Auto Detect"}, "target": target},
            "suggestions": False,
            "supportedFilesFormat": [],
        }
    )


def _detection(found: Detected) -> Json:
    return {"confidence": round(100 * found.confidence, 1), "language": found.language}


def _detected(asked: Translation, found: list[Pair]) -> Detected:
    codes = sorted({pair.source for pair in found if pair.target == asked.target})
    if not codes:
        raise InvalidFieldError(f"{asked.target[:40]} is not supported")
    if any(pair.source == asked.target for pair in found):
        codes.append(asked.target)  # a text that is in that language already
    best = detect("\n".join(asked.texts), codes)
    return best[0] if best else Detected(codes[0], 0.0)


def _pairs(context: RequestContext) -> list[Pair]:
    models = []
    for model in context.models.list():
        known = model.served.languages if model.served is not None else model.bundle.languages if model.bundle else None
        models.append((model.name, known or Languages()))
    return pairs(models, context.settings)
