"""`/`: the page that shows the model at work, from files of this package; no request leaves the service."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from attendant.service.errors import NotFoundError
from attendant.service.http.guard.policy import Access, policy
from attendant.service.http.route import GuardedRoute

DIRECTORY = Path(__file__).parent / "static"
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
CACHING = {"cache-control": "no-cache"}  # revalidated each time, so that files of two versions are never mixed


class PageFiles(StaticFiles):
    def is_not_modified(self, response_headers: Headers, request_headers: Headers) -> bool:
        """Whether the client has the file: its tag is listed, weak or not, or any will do. Starlette 0.40 sees less."""
        given = [tag.strip() for line in request_headers.getlist("if-none-match") for tag in line.split(",")]
        if not any(given):
            return super().is_not_modified(response_headers, request_headers)
        return "*" in given or response_headers["etag"] in [tag.removeprefix("W/") for tag in given]


router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
files = PageFiles(directory=DIRECTORY)


@router.get("/")
@policy(Access.OPEN, headers=HEADERS)
async def index(request: Request) -> Response:
    return await _file("index.html", request)


@router.get("/page/{name}")
@policy(Access.OPEN, headers=HEADERS)
async def part(name: str, request: Request) -> Response:
    return await _file(name, request)


async def _file(name: str, request: Request) -> Response:
    try:
        response = await files.get_response(name, request.scope)
    except HTTPException:
        raise NotFoundError(f"There is nothing at /page/{name[:100]}; / is the page.") from None
    response.headers.update({**HEADERS, **CACHING})
    return response
