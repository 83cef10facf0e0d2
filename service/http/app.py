"""The application: every part is built and joined here; no state lives at module level."""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route

from attendant_version import VERSION, install_command
from export.bundle import read_bundle
from service.engine.interface import EngineInterface
from service.engine.shared import SharedEngine
from service.errors import InvalidJSONError, NotFoundError, ServiceError, StartError
from service.http import chat, docs, explain, native, openai, page, v2
from service.http.context import AppState
from service.http.errors import MethodNotAllowedError
from service.http.middleware import Middleware
from service.http.models import LoadEngine
from service.http.record import Traffic
from service.http.registry import Models
from service.http.responses import JSONLine
from service.http.route import body_model
from service.metrics import Metrics
from service.requests.content import Json
from service.requests.validation import body_refusal
from service.settings import DEFAULT_BUNDLE, Settings

if TYPE_CHECKING:
    from service.http.tracing import Tracing

ROUTERS = (
    native.direct,
    openai.direct,
    chat.direct,
    explain.router,
    native.router,
    openai.router,
    v2.infer_router,
    v2.router,
    native.admin,
    native.probes,
    v2.probes,
    docs.router,
    page.router,
)

MEGABYTE = 10**6

log = logging.getLogger("attendant")


def create_app(
    settings: Settings,
    engine: EngineInterface | None = None,
    registry: CollectorRegistry | None = None,
    load: LoadEngine | None = None,
    on_failure: Callable[[Exception], None] = lambda _: None,
    tracing: Tracing | None = None,
) -> FastAPI:
    """The service as an ASGI application; it owns its engines and closes them.

    Without a running `engine`, it loads its models when it starts, and answers probes meanwhile; `on_failure` is called
    if that fails. A given `engine` is not traced. Answers are cached and shared between equal requests only if the
    application loads its engines itself, without a given `load`. `app.state` has the `parts`, and `traffic`.
    """
    metrics = Metrics(registry or CollectorRegistry())
    metrics.build_info(version=VERSION, onnxruntime=_onnxruntime_version(), python=platform.python_version())
    tracing = tracing or _make_tracing(settings)
    models = Models(settings, _make_loader(settings, metrics, load, tracing, lambda: models.count), metrics)
    if engine is not None:
        models.put(engine)
    app = FastAPI(
        title="Attendant",
        version=VERSION,
        description="Decoding with an encoder-decoder Transformer.",
        lifespan=_lifespan(models, on_failure if engine is None else None, tracing),
        default_response_class=JSONLine,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # ours are `tracing.py`, `metrics.py`, `logs.py`
        exception_handlers={RequestValidationError: _refuse_invalid, HTTPException: _refuse_path},
    )
    app.state.parts, app.state.traffic = AppState(settings, models, metrics), Traffic()
    app.add_middleware(
        Middleware,
        settings=settings,
        metrics=metrics,
        traffic=app.state.traffic,
        error_format=_error_format,
    )
    if tracing is not None:
        from service.http.tracing import TracingMiddleware

        app.add_middleware(TracingMiddleware, tracer=tracing.tracer)
    for router in ROUTERS:
        app.include_router(router, dependencies=_security(router, settings))
        _answer_head(app, router.routes)
    return app


def _lifespan(
    models: Models, on_failure: Callable[[Exception], None] | None, tracing: Tracing | None
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """The ASGI lifespan: begins to load the models, unless `on_failure` is None, and closes them at the end."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loading = None if on_failure is None else asyncio.create_task(_start(models, on_failure))
        yield
        if loading is not None:
            await loading
        await models.close(0.0)
        if tracing is not None:
            await asyncio.to_thread(tracing.close)

    return lifespan


def _make_tracing(settings: Settings) -> Tracing | None:
    """OpenTelemetry is imported only if tracing is on."""
    if not settings.tracing:
        return None
    try:
        from service.http.tracing import Tracing
    except ModuleNotFoundError as error:
        raise StartError(f"--tracing needs {error.name}; run: {install_command('otel')}.") from None
    return Tracing()


def _error_format(path: str, error: ServiceError) -> tuple[int, Json]:
    """Status and body of an error in the format of its path: V2, OpenAI or native."""
    is_v2 = path == v2.PREFIX or path.startswith(v2.PREFIX + "/")
    return v2.error_format(path, error) if is_v2 else openai.error_format(path, error)


def bundle_directory(settings: Settings) -> Path:
    return settings.bundle or DEFAULT_BUNDLE


def _make_loader(
    settings: Settings, metrics: Metrics, given: LoadEngine | None, tracing: Tracing | None, count: Callable[[], int]
) -> LoadEngine:
    """The function that loads engines: `given`, or ours, which also shares equal requests; traced if tracing is on."""
    load = given or _engine_loader(settings, metrics, count)
    traced = load if tracing is None else tracing.loader(load)
    return traced if given else _sharing_loader(settings, metrics, traced)


def _engine_loader(settings: Settings, metrics: Metrics, count: Callable[[], int]) -> LoadEngine:
    """Loads real engines: the one place in service/http that imports them, late, so that probes are answered meanwhile.

    `count` returns how many models there are; they share the processors and the memory.
    """
    turns: Any = None  # shared by the engines of several models

    def load(directory: Path | None) -> EngineInterface:
        nonlocal turns
        from service.engine.engine import Engine, EngineSettings, Turns, total_threads

        bundle = read_bundle(directory or bundle_directory(settings))
        if settings.models is None:
            engine = Engine(bundle, EngineSettings.of(settings), metrics.model(bundle.name))
        else:
            most = min(settings.max_loaded or count(), count())
            engine_settings = EngineSettings.of(settings, memory_shares=most)
            turns = turns or Turns(total_threads(engine_settings))
            engine = Engine(bundle, engine_settings, metrics.model(bundle.directory.name), turns)
        engine.start()
        return engine

    return load


def _sharing_loader(settings: Settings, metrics: Metrics, load: LoadEngine) -> LoadEngine:
    """Wraps the engines that `load` returns so that equal requests are computed once, if the settings ask for it."""
    if not settings.cache_megabytes and not settings.share_in_flight:
        return load

    def load_shared(directory: Path | None) -> EngineInterface:
        engine = load(directory)
        name = engine.description.model if settings.models is None or directory is None else directory.name
        return SharedEngine(engine, metrics.model(name), settings.cache_megabytes * MEGABYTE, settings.share_in_flight)

    return load_shared


async def _start(models: Models, on_failure: Callable[[Exception], None]) -> None:
    try:
        await models.start()
    except Exception as error:
        if models.draining:
            return
        if not hasattr(error, "exit_code"):
            log.exception("the model could not be loaded")
        on_failure(error)


def _security(router: APIRouter, settings: Settings) -> list[Any]:
    """Declares in OpenAPI which endpoints need a key; the middleware checks it, before it reads a body."""
    keys = (
        ()
        if router in (native.probes, v2.probes)
        else settings.admin_keys
        if router is native.admin
        else settings.api_keys
    )
    return [Depends(HTTPBearer(auto_error=False))] if keys else []


def _answer_head(app: FastAPI, routes: Any) -> None:
    for route in routes:
        if isinstance(route, APIRoute) and "GET" in (route.methods or ()):
            app.add_api_route(route.path, route.endpoint, methods=["HEAD"], include_in_schema=False)


def _onnxruntime_version() -> str:
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


async def _refuse_invalid(request: Request, error: Exception) -> NoReturn:
    """A body or a parameter that is not what the handler declares."""
    assert isinstance(error, RequestValidationError)
    if request.scope["route"].body_field is None:
        raise _not_found(request.url.path) from None
    raise body_refusal(body_model(request.scope["route"]), error.errors(), empty=not await request.body()) from None


async def _refuse_path(request: Request, error: Exception) -> NoReturn:
    """No route for the path or the method, or a body that cannot even be parsed."""
    assert isinstance(error, HTTPException)
    if error.status_code == 400:
        raise InvalidJSONError(f"The body is not JSON: {_reason(error.__cause__)}.") from None
    path, method = request.url.path[:100], request.method[:20]
    if error.status_code == 405:
        allow = ", ".join(sorted(_methods(request)))
        raise MethodNotAllowedError(f"{path} takes {allow}, not {method}.", allow) from None
    raise _not_found(path) from None


def _not_found(path: str) -> NotFoundError:
    return NotFoundError(f"There is nothing at {path[:100]}; /docs lists what there is.")


def _reason(cause: BaseException | None) -> str:
    if isinstance(cause, UnicodeDecodeError):
        return f"it is not UTF-8, at byte {cause.start + 1}"
    return "it is nested too deeply" if isinstance(cause, RecursionError) else "it cannot be read"


def _methods(request: Request) -> set[str]:
    """All methods that a path takes: each of its routes knows only its own."""
    routes = [route for router in (request.app, *ROUTERS) for route in router.routes if isinstance(route, Route)]
    return {method for route in routes if route.path_regex.match(request.url.path) for method in route.methods or ()}
