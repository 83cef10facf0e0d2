"""Loading and unloading of models: one load at a time, in a thread beside the event loop, with no request dropped.

A model that is wanted and does not fit waits until another is idle; the least recently used idle one is unloaded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from export.bundle import BundleError, read_bundle
from service.engine.interface import EngineInterface
from service.errors import NotReadyError, ServiceError, StartError
from service.http.models import LoadEngine, Model
from service.metrics import Metrics
from service.requests.served import ServedModel

WEIGHTS_SHARE = 0.5  # of the memory limit, for the weights of all loaded models
# Bytes in memory for each byte of weights on disk: loaded for all threads, and for one lane's share of them.
MEMORY_PER_WEIGHT = 2
RETRY_SECONDS = 5.0  # before a failed load is tried again
IDLE_INTERVAL = 0.02  # seconds between two checks for an idle model
PATIENCE = 5.0  # seconds after which a busy model takes no new requests, so that a load never waits forever
MOST_THREADS = 32  # that load bundles, and wait until engines are closed

log = logging.getLogger("attendant")


class Loader:
    def __init__(
        self,
        load: LoadEngine,
        models: Callable[[], Iterable[Model]],
        metrics: Metrics,
        *,
        grace: float,
        memory: int,
        max_loaded: int = 0,
    ) -> None:
        """`models` returns the current models; `grace` is how long a replaced engine may finish, in seconds."""
        self._load, self._models, self._metrics = load, models, metrics
        self._grace, self._memory, self._max_loaded = grace, memory, max_loaded
        self._one_load = asyncio.Lock()  # first come, first served
        self._threads = ThreadPoolExecutor(MOST_THREADS, "attendant-models")
        self._retired: dict[asyncio.Task[None], tuple[str, EngineInterface]] = {}
        self._closed = False

    def engines(self, name: str) -> list[EngineInterface]:
        """Those of a model that may still decode: the serving one, and those that it replaced."""
        serving = [m.served.engine for m in self._models() if m.name == name and m.served is not None]
        return [*serving, *(engine for of, engine in list(self._retired.values()) if of == name)]

    def want(self, model: Model, evict: bool = True) -> asyncio.Task[None]:
        """Start to load a model, unless that is under way; without `evict`, only if it fits beside those loaded."""
        if model.loading is None:
            model.loading = asyncio.get_running_loop().create_task(self._load_wanted(model, evict))
        return model.loading

    async def swap(self, model: Model, directory: Path | None) -> bool:
        """Load a bundle while the model's old one serves, then replace it; a bundle that is refused changes nothing.

        False if the model, one of several, was unloaded meanwhile: it may no longer fit in memory.
        """
        async with self._one_load:
            if model.bundle is not None and model.served is None:
                return False
            await self._load_into(model, directory)
            return True

    def put(self, model: Model, served: ServedModel) -> None:
        """Serve a model with this from now on; the engine that it replaces is closed once its requests are done."""
        old, name = model.served, model.name
        model.served, model.name = served, served.name
        model.failure, model.leaving = None, False
        if old is not None:
            self.retire(old)
        if model.name != name:
            self.watch(model)
        self._metrics.model(model.name).serving(served.description)
        model.wake()

    def watch(self, model: Model) -> None:
        """Let the metrics read the model's gauges at every scrape."""
        name = model.name
        self._metrics.model(name).read_levels_from(lambda: self.engines(name), lambda: model.state)

    def retire(self, served: ServedModel) -> None:
        """Close an engine that gets no new requests, once its requests are done."""
        task = asyncio.get_running_loop().create_task(self._in_thread(served.engine.close, self._grace))
        self._retired[task] = served.name, served.engine
        task.add_done_callback(self._retired.pop)
        task.add_done_callback(lambda _: self.forget(served.name))

    def forget(self, name: str) -> None:
        """Remove the gauges of a name that has neither a model nor an engine that still decodes."""
        if not self.engines(name) and all(model.name != name for model in self._models()):
            self._metrics.model(name).removed()

    async def close(self, grace: float) -> None:
        """Let requests that wait for a load or are being tokenized be submitted, then close every engine.

        Takes `grace` seconds at most, but waits for a load that is under way and for engines replaced before.
        """
        until = time.monotonic() + grace
        while any(model.wanted or model.planning for model in self._models()) and time.monotonic() < until:
            await asyncio.sleep(IDLE_INTERVAL)
        self._closed = True
        for model in self._models():
            model.wake(stopping())
        loaded = [model for model in self._models() if model.served is not None]
        await asyncio.gather(*(self._close(model, until) for model in loaded))
        if ending := [*self._retired, *(model.loading for model in self._models() if model.loading is not None)]:
            await asyncio.wait(ending)

    async def _close(self, model: Model, until: float) -> None:
        assert model.served is not None
        await self._in_thread(lambda engine: engine.close(max(0.0, until - time.monotonic())), model.served.engine)
        model.served = None

    async def _load_wanted(self, model: Model, evict: bool) -> None:
        error = None
        try:
            async with self._one_load:
                if self._closed:
                    raise stopping()
                if model.available is None:
                    await self._check_files(model)
                    if await self._make_room(model, evict):
                        await self._load_bundle(model)
        except Exception as found:
            error = self.note_failure(model, found)
        finally:
            model.loading = None
            model.wake(error)

    async def _check_files(self, model: Model) -> None:
        """Check the files if the last load failed and this one must evict others: a broken bundle evicts none."""
        if model.failure is not None and model.bundle is not None and not self._fits(model):
            await self._in_thread(read_bundle, model.bundle.directory)

    async def _load_bundle(self, model: Model) -> None:
        """Load the model's bundle, and again if a reload gave it another one meanwhile."""
        loaded = None
        while loaded is not model.bundle:
            loaded = model.bundle
            assert loaded is not None
            await self._load_into(model, loaded.directory)
        log.info("loaded %s", model.name)

    async def _load_into(self, model: Model, directory: Path | None) -> None:
        if self._closed:
            raise stopping()
        try:
            served = await self._in_thread(self._serve, directory, None if model.bundle is None else model.name)
        except Exception:
            if model.name:
                self._metrics.model(model.name).loaded("failed")
            raise
        if self._closed or model.removed:
            await self._in_thread(served.engine.close)
            raise stopping() if self._closed else NotReadyError(f"The model {model.name!r} was removed meanwhile.")
        self.put(model, served)
        self._metrics.model(model.name).loaded("ok")

    def _serve(self, directory: Path | None, name: str | None) -> ServedModel:
        """Runs in a thread: ServedModel takes its time too, for a large vocabulary."""
        return ServedModel(self._load(directory), name)

    def note_failure(self, model: Model, error: Exception) -> ServiceError:
        """Record and log why a load failed; returns the error for the requests that wait for it."""
        if isinstance(error, ServiceError):
            return error
        model.failure = sentence_of(error)
        model.retry_at = time.monotonic() + RETRY_SECONDS
        log.error("the model %s cannot be loaded: %s", model.name, model.failure)
        return cannot_load(model)

    def _fits(self, model: Model) -> bool:
        """Whether a model fits beside those that are loaded; alone it always does."""
        others = [m for m in self._models() if m.served is not None and m is not model]
        if self._max_loaded and len(others) >= self._max_loaded:
            return False
        needed = MEMORY_PER_WEIGHT * sum(m.bundle.weight_bytes for m in (*others, model) if m.bundle is not None)
        return not others or needed <= WEIGHTS_SHARE * self._memory

    async def _make_room(self, model: Model, evict: bool) -> bool:
        """Unload idle models until this one fits; False if it may not evict, is removed, or no request waits for it."""
        asked = time.monotonic()
        try:
            while not model.removed and not self._fits(model):
                if not evict or not model.wanted:
                    return False
                loaded = sorted((m for m in self._models() if m.served is not None), key=lambda m: m.last_used)
                idle = next((m for m in loaded if m.idle), None)
                if idle is not None:
                    await self._unload(idle)
                    continue
                if time.monotonic() - asked > PATIENCE and not any(m.leaving for m in loaded):
                    loaded[0].leaving = True
                await asyncio.sleep(IDLE_INTERVAL)
            return not model.removed
        finally:
            for other in self._models():
                if other.leaving:
                    other.leaving = False
                    other.wake()

    async def _unload(self, model: Model) -> None:
        assert model.served is not None
        engine, model.served, model.leaving = model.served.engine, None, False
        self._metrics.model(model.name).unloaded()
        log.info("unloaded %s, the least recently used, to make room", model.name)
        await self._in_thread(engine.close, self._grace)

    async def _in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)


def sentence_of(error: Exception) -> str:
    """Why a bundle is refused, for clients; the details of an unexpected error are only logged."""
    if isinstance(error, BundleError | StartError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"it cannot be read: {error.strerror}."
    log.error("loading failed", exc_info=error)
    return "something went wrong in the service; its log tells more."


def stopping() -> NotReadyError:
    return NotReadyError("The service is stopping; send the request to another one.")


def cannot_load(model: Model) -> NotReadyError:
    return NotReadyError(f"The model {model.name!r} cannot be loaded: {model.failure} It is tried again after a while.")
