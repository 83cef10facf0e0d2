"""`/`: the page that shows the model at work, from files of this package; no request leaves the service."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.errors import NotFoundError

DIRECTORY = Path(__file__).parent / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
CACHING = {"cache-control": "no-cache"}  # revalidated each time, so that files of two versions are never mixed

router = APIRouter(include_in_schema=False)


@router.get("/")
def index(request: Request) -> Response:
    return _answer("index.html", request)


@router.get("/page/{name}")
def part(name: str, request: Request) -> Response:
    """Not async: FastAPI runs it in a thread, since the first call reads the disk."""
    if name not in _names():
        raise NotFoundError(f"There is nothing at /page/{name[:100]}; / is the page.")
    return _answer(name, request)


def is_of_the_page(path: str) -> bool:
    """Whether answers at this path, errors included, have HEADERS."""
    return path == "/" or path.startswith("/page/")


@cache
def _names() -> frozenset[str]:
    return frozenset(path.name for path in DIRECTORY.iterdir() if path.suffix in TYPES)


@cache
def _content(name: str) -> tuple[bytes, str]:
    """A file and its ETag."""
    content = (DIRECTORY / name).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def _answer(name: str, request: Request) -> Response:
    content, tag = _content(name)
    headers = {**HEADERS, **CACHING, "etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=TYPES[Path(name).suffix], headers=headers)
