"""The application: every part is built and joined here; nothing lives at module level."""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.requests import Request

from export.bundle import read_bundle
from service.engine.interface import EngineInterface
from service.errors import NotFoundError
from service.http.middleware import MethodNotAllowedError, Middleware, Traffic
from service.http.models import Holder, Load
from service.http.native import Api
from service.http.openai import ERROR_FORMS, openai_router
from service.metrics import Metrics
from service.settings import DEFAULT_BUNDLE, Settings

log = logging.getLogger("attendant")


def create_app(
    settings: Settings,
    engine: EngineInterface | None = None,
    registry: CollectorRegistry | None = None,
    load: Load | None = None,
    failed: Callable[[Exception], None] = lambda _: None,
) -> FastAPI:
    """The service as an ASGI application, which comes to own its engines.

    Without an engine that runs already, it loads one when it starts, and answers probes meanwhile; `failed` hears of it
    if that one cannot serve. `app.state` has the `holder` of the engine, and `traffic`.
    """
    metrics = Metrics(registry or CollectorRegistry())
    metrics.build_info(version("attendant"), _onnxruntime_version(), platform.python_version())
    holder = Holder(load or _loader(settings, metrics), metrics, settings.grace_seconds)
    if engine is not None:
        holder.put(engine)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loading = None if engine is not None else asyncio.create_task(_start(holder, failed))
        yield
        if loading is not None:
            await loading
        await holder.close(0.0)

    app = FastAPI(
        title="Attendant",
        version=version("attendant"),
        description="Decoding with an encoder-decoder Transformer.",
        lifespan=lifespan,
        redirect_slashes=False,
        redoc_url=None,
    )
    app.state.holder, app.state.traffic = holder, Traffic()
    app.add_middleware(
        Middleware, settings=settings, metrics=metrics, traffic=app.state.traffic, error_forms=ERROR_FORMS
    )
    app.add_exception_handler(HTTPException, _no_route)
    app.include_router(Api(settings, holder, metrics).router())
    app.include_router(openai_router(holder.get, settings))
    return app


def bundle_directory(settings: Settings) -> Path:
    return settings.bundle or DEFAULT_BUNDLE


def _loader(settings: Settings, metrics: Metrics) -> Load:
    def load(directory: Path | None) -> EngineInterface:
        from service.engine.engine import (
            Engine,  # onnxruntime is loaded while probes are answered already
            EngineSettings,
        )

        bundle = read_bundle(directory or bundle_directory(settings))
        engine = Engine(bundle, EngineSettings.of(settings), metrics)
        engine.start()
        return engine

    return load


async def _start(holder: Holder, failed: Callable[[Exception], None]) -> None:
    try:
        await holder.start()
    except Exception as error:
        if not hasattr(error, "exit_code"):
            log.exception("the model could not be loaded")
        failed(error)


def _onnxruntime_version() -> str:
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


async def _no_route(request: Request, error: Exception) -> NoReturn:
    path = request.url.path
    if isinstance(error, HTTPException) and error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        raise MethodNotAllowedError(f"{path[:100]} takes {allow}, not {request.method[:20]}.", allow) from None
    raise NotFoundError(f"There is nothing at {path[:100]}; /docs lists what there is.") from None
