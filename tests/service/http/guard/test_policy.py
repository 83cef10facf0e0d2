"""Who may call a path: every route says so itself, and no spelling of a path leads around it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import APIRouter
from starlette.routing import BaseRoute, Route
from starlette.testclient import TestClient

from attendant.service.http.endpoints.libretranslate import LibreTranslateRoute
from attendant.service.http.guard.policy import Access, policy_of
from attendant.service.http.guard.route_path import route_path
from attendant.service.http.route import GuardedRoute
from attendant.service.http.routes import ROUTERS, ROUTES
from tests.support.serving import Service, in_process

KEY, ADMIN = {"Authorization": "Bearer normal"}, {"Authorization": "Bearer admin"}
CASES = [(method, route) for route in ROUTES for method in sorted(route.methods)]
IDS = [f"{method} {route.path}" for method, route in CASES]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with in_process(tmp_path_factory.mktemp("bundle"), api_keys=("normal",), admin_keys=("admin",)) as service:
        yield service


@pytest.fixture
def reloads(keyed: Service, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The reloads that were asked for; none is done."""
    found: list[Any] = []

    async def reload(*arguments: Any) -> None:
        found.append(arguments)

    monkeypatch.setattr(keyed.client.app.state.parts.models, "reload", reload)  # type: ignore[attr-defined]
    return found


def filled(route: Route) -> str:
    """A path that the route matches, with a name of no model and of no file."""
    return re.sub(r"{\w+(:path)?}", "nothing", route.path)


def leaves(routes: list[BaseRoute]) -> Iterator[BaseRoute]:
    """Every route below these; FastAPI keeps an included router as one of its routes."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if isinstance(inner, APIRouter):
            yield from leaves(inner.routes)
        else:
            yield route


def test_every_route_of_the_application_is_guarded(keyed: Service) -> None:
    found = list(leaves(keyed.client.app.routes))  # type: ignore[attr-defined]
    assert {type(route) for route in found} <= {GuardedRoute, *GuardedRoute.__subclasses__()}
    assert {route.path for route in found} == {route.path for route in ROUTES}  # type: ignore[attr-defined]
    assert sum(len(router.routes) for router in ROUTERS) == len(ROUTES)


def test_a_route_without_a_policy_cannot_be_made() -> None:
    async def forgotten() -> None: ...

    with pytest.raises(TypeError, match="declares no @policy"):
        APIRouter(route_class=GuardedRoute).add_api_route("/forgotten", forgotten)


@pytest.mark.parametrize(("method", "route"), CASES, ids=IDS)
def test_a_route_takes_the_key_that_it_declares_and_no_lesser(
    method: str, route: GuardedRoute, keyed: Service, reloads: list[Any]
) -> None:
    # LibreTranslate's are switched off here, and only whoever has a key is told that nothing is there.
    access = Access.API_KEY if isinstance(route, LibreTranslateRoute) else policy_of(route.endpoint).access
    statuses = [keyed.client.request(method, filled(route), headers=key).status_code for key in ({}, KEY, ADMIN)]
    refused = [status in (401, 403) for status in statuses]
    wanted = {Access.OPEN: [False, False, False], Access.API_KEY: [True, False, False]}
    assert refused == wanted.get(access, [True, True, False])
    assert len(reloads) == (access is Access.ADMIN_KEY)


def test_only_what_holds_no_data_is_open() -> None:
    opened = {route.path for route in ROUTES if policy_of(route.endpoint).access is Access.OPEN}
    probes = {"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"}
    libretranslate = {"/languages", "/frontend/settings"}  # where it is switched on: as its clients expect
    assert opened == {"/", "/page/{name}", "/docs/{name}", *probes, *libretranslate}


def test_only_a_reload_needs_an_admin_key() -> None:
    assert [r.path for r in ROUTES if policy_of(r.endpoint).access is Access.ADMIN_KEY] == ["/v1/reload"]


def spellings(path: str) -> list[str]:
    """Other ways to write a path: slashes, dots, escapes, cases, parameters, control characters."""
    first = path[1:2]
    return [
        *(path, f"/{path}", f"//{path}", f"{path}/", f"{path}//", f"/.{path}", f"{path}/.", f"/x/..{path}"),
        *(
            path.replace("/", "//"),
            path.replace("/", "/./"),
            "/" + path[1:].replace("/", "%2F"),
            path.replace("/", "/%2e/"),
        ),
        *(path.upper(), path.title(), f"{path}?", f"{path}?a=b", f"{path};a", f"{path}%20", f"{path}%0A", f"{path}%00"),
        *(f"/%{ord(first):02x}{path[2:]}" if first else path, f"{path}%2F", f"{path}#x", f"/v2{path}", f"/page{path}"),
        *(f"/docs{path}", f"/page/..{path}", f"/docs/..{path}", f"/page/%2e%2e{path}", f"/docs/%2e%2e%2f{path[1:]}"),
    ]


@pytest.mark.parametrize("root", ["", "/", "/x", "/x/"])
def test_no_spelling_of_a_path_is_answered_without_its_key(root: str, keyed: Service, reloads: list[Any]) -> None:
    client = TestClient(keyed.client.app, root_path=root)
    closed = [(m, r) for m, r in CASES if policy_of(r.endpoint).access is not Access.OPEN]
    for method, route in closed:
        for spelling in spellings(filled(route)):
            for path in {spelling, f"{root.rstrip('/')}{spelling}"}:
                answer = client.request(method, f"http://testserver{path}")
                assert answer.status_code in (401, 403, 404, 405), (method, path)
                if answer.status_code in (404, 405):  # only below the open files, which do not say what there is
                    assert re.match(r"(/x/?)?/*(page|docs)/|(/x/?)?/*$", answer.request.url.path), (method, path)
    assert reloads == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "reload", "Post"])
@pytest.mark.parametrize("root", ["", "/x", "/x/"])
def test_no_spelling_of_a_reload_is_done_without_an_admin_key(
    method: str, root: str, keyed: Service, reloads: list[Any]
) -> None:
    client = TestClient(keyed.client.app, root_path=root)
    for spelling in spellings("/v1/reload"):
        for path in {spelling, f"{root.rstrip('/')}{spelling}"}:
            answer = client.request(method, f"http://testserver{path}", headers=KEY)
            assert answer.status_code in (403, 404, 405), path
    assert reloads == []


def test_a_refused_request_is_not_read(keyed: Service) -> None:
    """A body without a key is refused by its headers: what it would have been is not looked at."""
    answer = keyed.client.post("/v1/generate", content=b"{", headers={"Content-Encoding": "rot13"})
    assert answer.status_code == 401


def test_a_wrong_method_is_told_to_whoever_has_a_key(keyed: Service) -> None:
    assert keyed.client.get("/v1/reload").status_code == 401
    answer = keyed.client.get("/v1/reload", headers=KEY)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["/v2/nothing", "/v2/models/a/b/c"])
def test_a_path_without_a_route_is_refused_in_the_dialect_of_its_prefix(path: str, keyed: Service) -> None:
    assert isinstance(keyed.client.get(path, headers=KEY).json()["error"], str)


def test_starlette_still_has_the_path_below_the_root_path() -> None:
    """route_path.py takes it from a private module: an upgrade that moves it fails here, by this name."""
    assert route_path({"type": "http", "path": "/x/v1/info", "root_path": "/x"}) == "/v1/info"
    assert route_path({"type": "http", "path": "/v1/info", "root_path": ""}) == "/v1/info"
