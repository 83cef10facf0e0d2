"""The model that is served now, and how another takes its place with no request dropped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from export.bundle import BundleError
from service.engine.interface import EngineInterface
from service.errors import InvalidFieldError, NotReadyError, StartError
from service.hardware import memory_limit
from service.http.defaults import usable_defaults
from service.metrics import Metrics
from service.tokenizer import LONG_TEXT

log = logging.getLogger("attendant")
Plan = TypeVar("Plan")

LoadEngine = Callable[[Path | None], EngineInterface]  # a started engine of a bundle; None: the configured one


class ServedModel:
    """An engine, with what every request asks of it looked up once."""

    def __init__(self, engine: EngineInterface) -> None:
        self.engine = engine
        self.description = engine.description
        self.name = self.description.model
        tokenizer = engine.target_tokenizer
        self.tokens = [tokenizer.token(index) for index in range(tokenizer.size)]
        self.token_texts = [tokenizer.text(index) for index in range(tokenizer.size)]
        self.readable = self.tokens == self.token_texts
        self.end = self.description.special_ids["eos"]
        self.max_target_length = self.description.max_target_length
        self.languages = self.description.languages
        self.defaults = usable_defaults(self.description.generation)
        self.forced_end = self.description.generation.get("forced_end") is True


class ModelHolder:
    """A request takes the model and submits to it without awaiting, so it never meets a model that was replaced."""

    def __init__(self, load: LoadEngine, metrics: Metrics, grace: float) -> None:
        self._load, self._metrics, self._grace = load, metrics, grace
        self._served: ServedModel | None = None
        self._reloading = asyncio.Lock()
        self._closed: ServedModel | None = None
        self._retired: dict[asyncio.Task[None], EngineInterface] = {}
        self.draining = False

    @property
    def ready(self) -> bool:
        return self._served is not None and not self.draining

    def engines(self) -> list[EngineInterface]:
        """Those that may still decode: the serving one, and those that it replaced."""
        serving = [] if self._served is None else [self._served.engine]
        return [*serving, *list(self._retired.values())]

    def get(self) -> ServedModel:
        if self._served is None:
            raise NotReadyError("The model is still being loaded; try again in a second.")
        if self.draining:
            raise NotReadyError("The service is stopping; send the request to another one.")
        return self._served

    def put(self, engine: EngineInterface) -> ServedModel:
        """Serve with this engine from now on."""
        self._served = ServedModel(engine)
        self._metrics.serving(self._served.description, memory_limit())
        return self._served

    async def start(self) -> ServedModel:
        """Load the configured bundle, beside an event loop that goes on."""
        return self.put(await asyncio.to_thread(self._load, None))

    async def reload(self, directory: Path | None) -> ServedModel:
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

    def _retire(self, old: ServedModel) -> None:
        task = asyncio.get_running_loop().create_task(asyncio.to_thread(old.engine.close, self._grace))
        self._retired[task] = old.engine
        task.add_done_callback(self._retired.pop)

    def refuse(self) -> None:
        """Take nothing new; what was accepted goes on."""
        self.draining = True

    async def close(self, grace: float) -> None:
        """Take nothing new, finish what was accepted within `grace` seconds, and end every engine."""
        self.refuse()
        if self._served is not self._closed and self._served is not None:
            self._closed = self._served
            await asyncio.to_thread(self._served.engine.close, grace)
        if self._retired:
            await asyncio.wait(self._retired)


async def plan_with(
    holder: ModelHolder, characters: int, plan: Callable[[ServedModel], Plan]
) -> tuple[ServedModel, Plan]:
    """The served model and what `plan` makes with it; tokenizing long texts runs in a thread, beside the event loop."""
    while True:
        served = holder.get()
        if characters <= LONG_TEXT:
            return served, plan(served)
        planned = await asyncio.to_thread(plan, served)
        if holder.get() is served:  # not replaced meanwhile
            return served, planned
