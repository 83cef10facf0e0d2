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

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.requests import Request

from attendant.common.hardware import memory_limit
from attendant.common.version import VERSION, install_command
from attendant.export.bundle import read_bundle
from attendant.service.client_keys import key_names
from attendant.service.engine.cache.shared import SharedEngine
from attendant.service.engine.interface import EngineInterface
from attendant.service.errors import InvalidJSONError, StartError
from attendant.service.http.context import AppState
from attendant.service.http.errors import MethodNotAllowedError
from attendant.service.http.guard.admission import check_key, nothing_at
from attendant.service.http.guard.clients import Clients
from attendant.service.http.guard.keys import Keys
from attendant.service.http.guard.middleware import Middleware
from attendant.service.http.guard.record import Traffic, record_of
from attendant.service.http.openapi import present
from attendant.service.http.responses import JSONLine
from attendant.service.http.route import GuardedRoute, Refusals, body_model
from attendant.service.http.routes import (
    ENDPOINTS,
    MODEL_ENDPOINTS,
    direct_applications,
    include_routes,
    methods_of,
    refusal_policy,
    routes_at,
)
from attendant.service.memory import CONNECTION_BYTES, PROCESS_BYTES, MemoryAccount
from attendant.service.models.model import LoadEngine
from attendant.service.models.needs import note_need
from attendant.service.models.registry import Models
from attendant.service.requests.validation import body_refusal
from attendant.service.settings import DEFAULT_BUNDLE, Settings
from attendant.service.watch.event_loop import watch_event_loop
from attendant.service.watch.metrics import Metrics

if TYPE_CHECKING:
    from attendant.service.watch.tracing import Tracing

MEGABYTE = 10**6

log = logging.getLogger("attendant")


class Application(FastAPI):
    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = present(super().openapi())
        return self.openapi_schema


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
    names = key_names((*settings.api_keys, *settings.admin_keys))
    metrics = Metrics(registry or CollectorRegistry(), ENDPOINTS, MODEL_ENDPOINTS, names)
    metrics.build_info(version=VERSION, onnxruntime=_onnxruntime_version(), python=platform.python_version())
    tracing = tracing or _make_tracing(settings)
    memory = make_account(settings)
    models = Models(
        settings, _make_loader(settings, metrics, load, tracing, lambda: models.count, memory), metrics, memory
    )
    if engine is not None:
        models.put(engine)
    app = Application(
        title="Attendant",
        version=VERSION,
        description="Decoding with an encoder-decoder Transformer.",
        lifespan=_lifespan(models, metrics, on_failure if engine is None else None, tracing, settings.grace_seconds),
        default_response_class=JSONLine,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # a guarded route of page/docs.py
        generate_unique_id_function=lambda route: route.name,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # ours are `tracing.py`, `metrics.py`, `logs.py`
        exception_handlers=REFUSALS,
    )
    metrics.read_memory_from(memory)
    clients = Clients(settings, metrics.clients)
    app.state.parts, app.state.traffic = AppState(settings, models, metrics, Keys(settings), clients, memory), Traffic()
    app.add_middleware(
        Middleware,
        settings=settings,
        metrics=metrics,
        traffic=app.state.traffic,
        clients=clients,
        memory=memory,
        direct=direct_applications(REFUSALS),
    )
    if tracing is not None:
        from attendant.service.watch.tracing import TracingMiddleware

        app.add_middleware(TracingMiddleware, tracer=tracing.tracer)
    include_routes(app, app.state.parts.keys)
    return app


def _lifespan(
    models: Models,
    metrics: Metrics,
    on_failure: Callable[[Exception], None] | None,
    tracing: Tracing | None,
    grace: float,
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """The ASGI lifespan: begins to load the models, unless `on_failure` is None, and closes them at the end.

    A load that is under way then is waited for during the grace period, and given up after it.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(watch_event_loop(metrics.event_loop_delay.observe))
        loading = None if on_failure is None else asyncio.create_task(_start(models, on_failure))
        yield
        watching.cancel()
        if loading is not None and not models.draining:
            models.refuse()
            await asyncio.wait([loading], timeout=grace)
        await models.close(0.0)
        if loading is not None:
            await loading
        app.state.parts.builder.close()
        if tracing is not None:
            await asyncio.to_thread(tracing.close)

    return lifespan


def _make_tracing(settings: Settings) -> Tracing | None:
    """OpenTelemetry is imported only if tracing is on."""
    if not settings.tracing:
        return None
    try:
        from attendant.service.watch.tracing import Tracing
    except ModuleNotFoundError as error:
        raise StartError(f"--tracing needs {error.name}; run: {install_command('otel')}.") from None
    return Tracing()


def make_account(settings: Settings) -> MemoryAccount:
    """The memory that requests may hold: what the process, its connections and its models leave of the limit."""
    limit = settings.memory_megabytes * MEGABYTE or memory_limit()
    return MemoryAccount(limit, PROCESS_BYTES + settings.max_connections * CONNECTION_BYTES)


def bundle_directory(settings: Settings) -> Path:
    return settings.bundle or DEFAULT_BUNDLE


def _make_loader(
    settings: Settings,
    metrics: Metrics,
    given: LoadEngine | None,
    tracing: Tracing | None,
    count: Callable[[], int],
    memory: MemoryAccount,
) -> LoadEngine:
    """The function that loads engines: `given`, or ours, which also shares equal requests; traced if tracing is on."""
    load = given or _engine_loader(settings, metrics, count, memory)
    traced = load if tracing is None else tracing.loader(load)
    return traced if given else _sharing_loader(settings, metrics, traced, memory)


def _engine_loader(settings: Settings, metrics: Metrics, count: Callable[[], int], memory: MemoryAccount) -> LoadEngine:
    """Loads real engines: the one place in service/http that imports them, late, so that probes are answered meanwhile.

    `count` returns how many models there are; they share the processors and the memory.
    """
    thread_budget: Any = None  # shared by the engines of several models

    def load(directory: Path | None) -> EngineInterface:
        nonlocal thread_budget
        from attendant.service.engine.engine import Engine, EngineSettings, ThreadBudget, total_threads

        bundle = read_bundle(directory or bundle_directory(settings), weights=False)
        name = bundle.name if settings.models is None else bundle.directory.name
        metrics.model(name).loading(note_need(bundle, settings.precision, name, memory))
        if settings.models is None:
            engine = Engine(bundle, EngineSettings.of(settings), metrics.model(bundle.name), None, memory)
        else:
            most = min(settings.max_loaded or count(), count())
            engine_settings = EngineSettings.of(settings, memory_shares=most)
            thread_budget = thread_budget or ThreadBudget(total_threads(engine_settings))
            engine = Engine(bundle, engine_settings, metrics.model(bundle.directory.name), thread_budget, memory)
        engine.start()
        return engine

    return load


def _sharing_loader(settings: Settings, metrics: Metrics, load: LoadEngine, memory: MemoryAccount) -> LoadEngine:
    """Wraps the engines that `load` returns so that equal requests are computed once, if the settings ask for it."""
    if not settings.cache_megabytes and not settings.share_in_flight:
        return load

    def load_shared(directory: Path | None) -> EngineInterface:
        engine = load(directory)
        name = engine.description.model if settings.models is None or directory is None else directory.name
        cache_bytes = settings.cache_megabytes * MEGABYTE
        memory.set_aside(("cache", name), cache_bytes)
        return SharedEngine(engine, metrics.model(name), cache_bytes, settings.share_in_flight)

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
        raise nothing_at(record_of(request.scope).path) from None
    raise body_refusal(body_model(request.scope["route"]), error.errors(), empty=not await request.body()) from None


async def _refuse_path(request: Request, error: Exception) -> NoReturn:
    """No route for the path or the method, or a body that cannot even be parsed."""
    assert isinstance(error, HTTPException)
    if error.status_code == 400:
        raise InvalidJSONError(f"The body is not JSON: {_reason(error.__cause__)}.") from None
    record = record_of(request.scope)
    record.policy = refusal_policy(record.path, record.headers)
    check_key(request.scope, record.policy)
    if error.status_code == 405:
        path, method = record.path[:100], request.method[:20]
        allow = ", ".join(sorted({method for route in routes_at(record.path) for method in _methods(route)}))
        raise MethodNotAllowedError(f"{path} takes {allow}, not {method}.", allow) from None
    raise nothing_at(record.path) from None


REFUSALS: Refusals = {RequestValidationError: _refuse_invalid, HTTPException: _refuse_path}


def _methods(route: GuardedRoute) -> set[str]:
    """With HEAD for GET."""
    methods = methods_of(route)
    return methods | {"HEAD"} if "GET" in methods else methods


def _reason(cause: BaseException | None) -> str:
    return "it is nested too deeply" if isinstance(cause, RecursionError) else "it cannot be read"
