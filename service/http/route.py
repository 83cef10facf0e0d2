"""Routes of the busy endpoints: declared as any in FastAPI, and called without its dependency solver.

The solver costs more than 5 % of requests/s (docs/decisions/009). Such a handler always takes `request`, the body's
model, and `context`. Errors are those of FastAPI, so the same exception handler answers them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from service.http.context import request_context
from service.requests.schemas import RequestModel
from service.requests.validation import model_in


class DirectRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        kind, endpoint = body_model(self), self.endpoint

        async def handle(request: Request) -> Response:
            model = parse_body(kind, await request.body())
            response: Response = await endpoint(request=model, context=await request_context(request))
            return response

        return handle


def body_model(route: APIRoute) -> type[RequestModel]:
    """The model that a route declares as its body."""
    assert route.body_field is not None
    kind = model_in(route.body_field.field_info.annotation)
    assert kind is not None
    assert issubclass(kind, RequestModel)
    return kind


def parse_body(kind: type[RequestModel], body: bytes) -> RequestModel:
    """A body of JSON as a model; what is wrong with it is raised as FastAPI would."""
    values = _parse(body)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in problems]) from None


def _parse(body: bytes) -> Any:
    if not body:
        raise RequestValidationError([{"type": "missing", "loc": ("body",), "msg": "empty", "input": None}])
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        problem = {"type": "json_invalid", "loc": ("body", error.pos), "msg": "", "ctx": {"error": error.msg}}
        raise RequestValidationError([problem]) from None
    except (ValueError, RecursionError) as error:
        raise HTTPException(400) from error
