"""`/docs`: Swagger UI from files of this package, so that it works without the internet.

Where API keys are set, `/docs` and the document itself, `/openapi.json`, need one. The files under `/docs/` are open,
and `/docs/index.html`, which is the same page, asks for the key.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from attendant.service.errors import NotFoundError
from attendant.service.http.guard.policy import Access, policy
from attendant.service.http.route import GuardedRoute

DIRECTORY = Path(__file__).parent / "swagger"  # swagger-ui-dist 5.34.1, compressed
FILES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
OWN_FILES = {"index.html": "text/html", "docs.js": "text/javascript"}
CACHED = "public, max-age=86400"
OWN_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
        "img-src 'self' data:"
    ),  # Swagger UI has inline styles
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)


@router.get("/docs")
@policy(Access.API_KEY)
def page() -> Response:
    return _own("index.html")


@router.get("/docs/{name}")
@policy(Access.OPEN)
def file(name: str, request: Request) -> Response:
    """Not async: FastAPI runs it in a thread, since reading and decompressing take milliseconds."""
    if name in OWN_FILES:
        return _own(name)
    if name not in FILES:
        raise NotFoundError(f"There is nothing at /docs/{name[:100]}; /docs is the page.")
    content = (DIRECTORY / f"{name}.gz").read_bytes()
    headers = {"cache-control": CACHED, "vary": "accept-encoding"}
    if takes_gzip(request.headers.get("accept-encoding", "")):
        return Response(content, media_type=FILES[name], headers={**headers, "content-encoding": "gzip"})
    return Response(gzip.decompress(content), media_type=FILES[name], headers=headers)


def takes_gzip(accepted: str) -> bool:
    """Whether Accept-Encoding names gzip, and not with a weight of 0."""
    for member in accepted.lower().split(","):
        coding, _, weight = member.partition(";")
        if coding.strip() in ("gzip", "x-gzip"):
            return re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight) is None
    return False


@router.get("/openapi.json")
@policy(Access.API_KEY)
def openapi(request: Request) -> JSONResponse:
    """The document of the API, with the root path that a proxy added."""
    document, root = request.app.openapi(), request.scope.get("root_path", "").rstrip("/")
    return JSONResponse({**document, "servers": [{"url": root}]} if root else document)


def _own(name: str) -> Response:
    return Response((DIRECTORY / name).read_bytes(), media_type=OWN_FILES[name], headers=OWN_HEADERS)
