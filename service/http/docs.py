"""`/docs`: Swagger UI from files of this package, so that it works without the internet."""

from __future__ import annotations

import gzip
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import Response

from service.errors import NotFoundError

DIRECTORY = Path(__file__).parent / "swagger"  # swagger-ui-dist 5.34.1, compressed
FILES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
NO_ICON = "data:,"
CACHED = "public, max-age=86400"

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def page() -> Response:
    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="Attendant",
        swagger_js_url="/docs/swagger-ui-bundle.js",
        swagger_css_url="/docs/swagger-ui.css",
        swagger_favicon_url=NO_ICON,
        swagger_ui_parameters={"validatorUrl": None},  # or Swagger UI would ask a service of its own
    )


@router.get("/docs/{name}")
def file(name: str, request: Request) -> Response:
    """In a thread, since reading and unpacking take milliseconds."""
    if name not in FILES:
        raise NotFoundError(f"There is nothing at /docs/{name[:100]}; /docs is the page.")
    content = (DIRECTORY / f"{name}.gz").read_bytes()
    headers = {"cache-control": CACHED, "vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(content, media_type=FILES[name], headers={**headers, "content-encoding": "gzip"})
    return Response(gzip.decompress(content), media_type=FILES[name], headers=headers)
