"""The kinds of routes: every one is guarded by the policy that its handler declares.

`DirectRoute` is for the busy endpoints: declared as any in FastAPI, and called without its dependency solver, which
costs more than 5 % of requests/s (docs/decisions/009). Such a handler always takes `request`, the body's model, and
`context`. Errors are those of FastAPI, so the same exception handler answers them.
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
from starlette.types import ASGIApp, Receive, Scope, Send

from attendant.service.http.context import request_context
from attendant.service.http.guard.admission import admit
from attendant.service.http.guard.policy import policy_of
from attendant.service.http.guard.record import record_of
from attendant.service.requests.schemas import RequestModel
from attendant.service.requests.validation import model_in

Handle = Callable[[Request], Coroutine[Any, Any, Response]]
Refusals = dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]]  # exception handlers


class GuardedRoute(APIRoute):
    """Checks who calls, by the policy of this very route, before it reads the body and calls the handler."""

    def get_route_handler(self) -> Handle:
        policy, handle = policy_of(self.endpoint), self.make_handler()

        async def guarded(request: Request) -> Response:
            await admit(request.scope, policy)
            return await handle(request)

        return guarded

    def make_handler(self) -> Handle:
        return super().get_route_handler()


class DirectRoute(GuardedRoute):
    def make_handler(self) -> Handle:
        kind, endpoint = body_model(self), self.endpoint

        async def handle(request: Request) -> Response:
            model = parse_body(kind, await request.body())
            record_of(request.scope).mark("validate")
            response: Response = await endpoint(request=model, context=await request_context(request))
            return response

        return handle

    def application(self, refuse: Refusals) -> ASGIApp:
        """The guarded handler for a request of which it is known that it is for this route; `refuse` answers errors."""
        guarded = self.get_route_handler()

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            scope["route"] = self
            request = Request(scope, receive, send)
            try:
                response = await guarded(request)
            except (RequestValidationError, HTTPException) as error:
                response = await refuse[type(error)](request, error)
            await response(scope, receive, send)

        return answer


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
