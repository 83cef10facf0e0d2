"""Loading and unloading of models: one load at a time, in a thread beside the event loop, with no request dropped.

A model that is wanted and does not fit waits until another is idle; the least recently used idle one is evicted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from attendant.export.bundle import BundleError, read_bundle
from attendant.service.engine.interface import EngineInterface
from attendant.service.errors import NotReadyError, ServiceError, StartError
from attendant.service.models.model import LoadEngine, Model
from attendant.service.models.threads import AbandonedError, Threads
from attendant.service.requests.served import ServedModel
from attendant.service.watch.metrics import Metrics

WEIGHTS_SHARE = 0.5  # of the memory limit, for the weights of all loaded models
# Bytes in memory for each byte of weights on disk: loaded for all threads, and for one lane's share of them.
MEMORY_PER_WEIGHT = 2
RETRY_SECONDS = 5.0  # before a failed load is tried again
IDLE_INTERVAL = 0.02  # seconds between two checks for an idle model
PATIENCE = 5.0  # seconds after which a busy model takes no new requests, so that a load never waits forever

log = logging.getLogger("attendant")


class Loader:
    def __init__(
        self,
        load: LoadEngine,
        models: Callable[[], Iterable[Model]],
        metrics: Metrics,
        *,
        grace: float,
        load_seconds: float,
        memory: int,
        max_loaded: int = 0,
        allow_unknown: str = "auto",
    ) -> None:
        """`models` returns the current models; `grace` is how long a replaced engine may finish, in seconds."""
        self._load, self._models, self._metrics = load, models, metrics
        self._grace, self._load_seconds, self._memory, self._max_loaded = grace, load_seconds, memory, max_loaded
        self._allow_unknown = allow_unknown
        self._one_load = asyncio.Lock()  # first come, first served
        self._threads = Threads("attendant-models")
        self._retired: dict[asyncio.Task[None], tuple[str, EngineInterface]] = {}
        self._closed = False

    @property
    def hanging(self) -> bool:
        """Whether a load that was given up has not returned."""
        return self._threads.hanging

    async def in_time(
        self,
        call: Callable[[], Any],
        directory: Path | None,
        what: str,
        discard: Callable[[Any], None] = lambda _: None,
    ) -> Any:
        """The call's result; StartError if it takes longer than a load may, or while an earlier one there hangs."""
        key = f"{what} {directory}"
        place = "the bundle" if directory is None else str(directory)
        if self._threads.hangs(key):
            raise StartError(f"{place} was not {what} earlier, and that still hangs; look at its disk or mount.")
        try:
            return await self._threads.run(call, key, self._load_seconds, discard)
        except AbandonedError:
            raise StartError(
                f"{place} was not {what} within {self._load_seconds:g} s (--load-seconds); look at its disk or mount."
            ) from None

    def engines(self, name: str) -> list[EngineInterface]:
        """Those of a model that may still decode: the serving one, and those that it replaced."""
        serving = [m.served.engine for m in self._models() if m.name == name and m.served is not None]
        return [*serving, *(engine for of, engine in list(self._retired.values()) if of == name)]

    def all_engines(self) -> list[EngineInterface]:
        serving = [model.served.engine for model in self._models() if model.served is not None]
        return [*serving, *(engine for _, engine in list(self._retired.values()))]

    def request_load(self, model: Model, evict: bool = True) -> asyncio.Task[None]:
        """Start to load a model, unless that is under way; without `evict`, only if it fits beside those loaded."""
        task = model.loading
        if task is None:
            task = asyncio.get_running_loop().create_task(self._load_wanted(model, evict))
            model.begin_load(task)
        return task

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
        name = model.name
        replaced = model.serve(served)
        if replaced is not None:
            self.retire(replaced)
        if model.name != name:
            self.watch(model)
        self._metrics.model(model.name).serving(served.description)

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

        Takes `grace` seconds at most, but waits for engines replaced before; a load that takes longer is given up.
        """
        until = time.monotonic() + grace
        while any(model.wanted or model.planning for model in self._models()) and time.monotonic() < until:
            await asyncio.sleep(IDLE_INTERVAL)
        self._closed = True
        for model in self._models():
            model.wake(stopping())
        await asyncio.gather(*(self._close(model, until) for model in self._models()))
        if under_way := self._threads.pending:
            await asyncio.wait(under_way, timeout=max(0.0, until - time.monotonic()))
            self._threads.give_up(stopping())
        if ending := [*self._retired, *(model.loading for model in self._models() if model.loading is not None)]:
            await asyncio.wait(ending)

    async def _close(self, model: Model, until: float) -> None:
        served = model.served
        if served is None:
            return
        await self._in_thread(lambda: served.engine.close(max(0.0, until - time.monotonic())))
        if model.served is served:  # neither evicted nor removed meanwhile
            model.unload()

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
            model.end_load(error)

    async def _check_files(self, model: Model) -> None:
        """Check the files if the last load failed and this one must evict others: a broken bundle evicts none."""
        if model.failure is not None and model.bundle is not None and not self._fits(model):
            directory = model.bundle.directory
            await self.in_time(lambda: read_bundle(directory), directory, "read")

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
            name = None if model.bundle is None else model.name
            served = await self.in_time(lambda: self._serve(directory, name), directory, "loaded", _close_engine)
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
        return self.served(self._load(directory), name)

    def served(self, engine: EngineInterface, name: str | None = None) -> ServedModel:
        counted = self._metrics.model(name or engine.description.model).read_unknown
        return ServedModel(engine, name, self._allow_unknown, counted)

    def note_failure(self, model: Model, error: Exception) -> ServiceError:
        """Record and log why a load failed; returns the error for the requests that wait for it."""
        if isinstance(error, ServiceError):
            return error
        model.fail_load(sentence_of(error), time.monotonic() + RETRY_SECONDS)
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
        """Evict idle models until this one fits; False if it may not evict, is removed, or no request waits for it."""
        asked = time.monotonic()
        try:
            while not model.removed and not self._fits(model):
                if not evict or not model.wanted:
                    return False
                loaded = sorted((m for m in self._models() if m.served is not None), key=lambda m: m.last_used)
                idle = next((m for m in loaded if m.idle), None)
                if idle is not None:
                    await self._evict(idle)
                    continue
                if time.monotonic() - asked > PATIENCE and not any(m.evicting for m in loaded):
                    loaded[0].begin_eviction()
                await asyncio.sleep(IDLE_INTERVAL)
            return not model.removed
        finally:
            for other in self._models():
                if other.evicting:
                    other.cancel_eviction()

    async def _evict(self, model: Model) -> None:
        engine = model.unload().engine
        self._metrics.model(model.name).unloaded()
        log.info("unloaded %s, the least recently used, to make room", model.name)
        await self._in_thread(engine.close, self._grace)

    async def _in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await self._threads.run(lambda: call(*arguments))


def _close_engine(served: ServedModel) -> None:
    served.engine.close()


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
