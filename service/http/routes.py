"""Every route of the application, and what follows from the policies that they declare."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, Depends, FastAPI
from fastapi.security import HTTPBearer
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from attendant.service.http.endpoints import chat, explain, libretranslate, native, openai, v2, v2_models
from attendant.service.http.guard.keys import Keys
from attendant.service.http.guard.policy import NATIVE, OTHER, Access, Dialect, Policy, policy_of
from attendant.service.http.page import docs, page
from attendant.service.http.route import DirectRoute, GuardedRoute, Refusals

ROUTERS = (
    *(native.direct, explain.router, openai.direct, chat.direct, v2.infer_router),  # the busy ones first
    *(openai.router, native.router, v2_models.router, libretranslate.router, docs.router, page.router),
)
ROUTES = tuple(route for router in ROUTERS for route in router.routes if isinstance(route, GuardedRoute))
DIALECTS = (v2_models.V2,)  # that have a prefix
OPENAI_HEADER, OPENAI_AGENT = b"x-stainless-lang", b"OpenAI/"  # that all of OpenAI's clients send

_policies = [policy_of(route.endpoint) for route in ROUTES]
# Values of the metrics' label `endpoint`; of MODEL_ENDPOINTS the label `model` is the model's name.
MODEL_ENDPOINTS = tuple(dict.fromkeys(policy.label for policy in _policies if policy.names_model))
ENDPOINTS = (*dict.fromkeys([*MODEL_ENDPOINTS, *(p.label for p in _policies if p.label != OTHER)]), OTHER)
# Refused through a proxy that would pass them to any replica.
OF_ONE_REPLICA = tuple(route.path for route in ROUTES if policy_of(route.endpoint).one_replica)


def include_routes(app: FastAPI, keys: Keys) -> None:
    """Add every route, and HEAD for each GET; OpenAPI says which want a key."""
    app.router.route_class = GuardedRoute
    for access in (Access.API_KEY, Access.ADMIN_KEY, Access.OPEN):
        routes: list[BaseRoute] = [route for route in ROUTES if policy_of(route.endpoint).access is access]
        declared = [Depends(HTTPBearer(auto_error=False))] if keys.declares(access) else []
        app.include_router(APIRouter(routes=routes), dependencies=declared)
    for route in ROUTES:
        if "GET" in methods_of(route):
            kind = type(route)  # HEAD is admitted as GET is
            app.router.add_api_route(
                route.path, route.endpoint, methods=["HEAD"], include_in_schema=False, route_class_override=kind
            )


def direct_applications(refuse: Refusals) -> dict[tuple[str, str], ASGIApp]:
    """The busy routes by method and path, for requests that need no router to find them."""
    return {
        (method, route.path): route.application(refuse)
        for route in ROUTES
        if isinstance(route, DirectRoute) and not route.param_convertors
        for method in methods_of(route)
    }


def methods_of(route: GuardedRoute) -> set[str]:
    """The methods of a route, without the HEAD that is added for a GET."""
    return set(route.methods or ())


def routes_at(path: str) -> list[GuardedRoute]:
    """The routes of a path, whatever their methods."""
    return [route for route in ROUTES if route.path_regex.match(path)]


def dialect_at(path: str, headers: Mapping[bytes, bytes]) -> Dialect:
    """The dialect of a path that has no route; OpenAI's own clients say who they are."""
    if path.startswith("/v1/") and (
        OPENAI_HEADER in headers or headers.get(b"user-agent", b"").startswith(OPENAI_AGENT)
    ):
        return openai.OPENAI
    return next((each for each in DIALECTS if path == each.prefix or path.startswith(f"{each.prefix}/")), NATIVE)


def refusal_policy(path: str, headers: Mapping[bytes, bytes]) -> Policy:
    """By which a request is refused that has no route, or none with its method: a key is enough to be told so."""
    found = routes_at(path)
    if not found:
        return Policy(Access.API_KEY, dialect=dialect_at(path, headers))
    declared = policy_of(found[0].endpoint)
    access = Access.OPEN if declared.access is Access.OPEN else Access.API_KEY
    return Policy(access, declared.label, declared.names_model, declared.dialect, declared.headers)
