"""The engine that serves now, and how another takes its place with nothing dropped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from export.bundle import BundleError
from service.engine.interface import EngineInterface
from service.errors import InvalidFieldError, NotReadyError, StartError
from service.hardware import memory_limit
from service.metrics import Metrics

log = logging.getLogger("attendant")

Load = Callable[[Path | None], EngineInterface]  # a started engine from a bundle's directory, None: the configured one


class Served:
    """An engine with what every request asks of it, looked up once."""

    def __init__(self, engine: EngineInterface) -> None:
        self.engine = engine
        self.description = engine.description
        self.name = self.description.model
        self.tokens = [engine.target_tokenizer.token(index) for index in range(engine.target_tokenizer.size)]
        self.end = self.description.special_ids["eos"]
        self.max_target_length = self.description.max_target_length


class Holder:
    """Requests take the engine and submit to it in one go, so none meets an engine that was already replaced."""

    def __init__(self, load: Load, metrics: Metrics, grace: float) -> None:
        self._load, self._metrics, self._grace = load, metrics, grace
        self._served: Served | None = None
        self._reloading = asyncio.Lock()
        self._closed: Served | None = None
        self._retired: set[asyncio.Task[None]] = set()
        self.draining = False

    @property
    def ready(self) -> bool:
        return self._served is not None and not self.draining

    def get(self) -> Served:
        if self._served is None:
            raise NotReadyError("The model is still being loaded; try again in a second.")
        if self.draining:
            raise NotReadyError("The service is stopping; send the request to another one.")
        return self._served

    def put(self, engine: EngineInterface) -> Served:
        """Serve with this engine from now on."""
        self._served = Served(engine)
        described = self._served.description
        self._metrics.model_info(
            self._served.name,
            described.precision,
            described.provider,
            described.provider_fallback is not None,
            described.certificate.tolerance,
        )
        self._metrics.limits(described.max_rows, described.max_queue_requests, memory_limit())
        self._metrics.ready(self.ready)
        return self._served

    async def start(self) -> Served:
        """Load the configured bundle, beside an event loop that goes on."""
        return self.put(await asyncio.to_thread(self._load, None))

    async def reload(self, directory: Path | None) -> Served:
        """Load a bundle beside the running one, and swap; a bundle that is refused changes nothing."""
        async with self._reloading:
            old = self.get()
            try:
                engine = await asyncio.to_thread(self._load, directory)
            except Exception as error:
                self._metrics.reload("refused")
                if not isinstance(error, BundleError | StartError):
                    raise
                log.error("reload refused, %s still serves: %s", old.name, error)
                raise InvalidFieldError(
                    f"The bundle is refused, and {old.name} still serves: {error}", "bundle"
                ) from None
            if self.draining:
                await asyncio.to_thread(engine.close)
                raise NotReadyError("The service is stopping; nothing was reloaded.")
            served = self.put(engine)
            self._metrics.reload("ok")
            log.info("reloaded: %s in place of %s", served.name, old.name)
            self._retire(old)
            return served

    def _retire(self, old: Served) -> None:
        task = asyncio.get_running_loop().create_task(asyncio.to_thread(old.engine.close, self._grace))
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)

    def refuse(self) -> None:
        """Take nothing new; what was accepted goes on."""
        self.draining = True
        self._metrics.ready(False)

    async def close(self, grace: float) -> None:
        """Take nothing new, finish what was accepted within `grace` seconds, and end every engine."""
        self.refuse()
        if self._served is not self._closed and self._served is not None:
            self._closed = self._served
            await asyncio.to_thread(self._served.engine.close, grace)
        if self._retired:
            await asyncio.wait(self._retired)
