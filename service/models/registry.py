"""The models of the service by name: one bundle, or every bundle under a directory."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from attendant.service.engine.interface import EngineInterface
from attendant.service.errors import InvalidFieldError, NotReadyError, StartError, UnknownModelError
from attendant.service.memory import MemoryAccount
from attendant.service.models.bundles import FoundBundle, find_bundles
from attendant.service.models.loading import Loader, cannot_load, sentence_of, stopping
from attendant.service.models.model import LoadEngine, Model, WatchClient
from attendant.service.requests.served import ServedModel
from attendant.service.settings import Settings
from attendant.service.watch.metrics import Metrics

DEFAULT = "default"  # without --default-model, a model of this name serves requests that name none
MOST_NAMES = 20  # listed in one error message

log = logging.getLogger("attendant")


class Models:
    """All models. A request gets one and submits to it without an await in between, so it is not replaced meanwhile."""

    def __init__(self, settings: Settings, load: LoadEngine, metrics: Metrics, memory: MemoryAccount) -> None:
        self._settings, self._metrics = settings, metrics
        self._models: list[Model] = []
        self._started = False  # the loads at startup have ended
        self._reloading = asyncio.Lock()
        self.draining = False
        self._loader = Loader(
            load,
            lambda: self._models,
            metrics,
            grace=settings.grace_seconds,
            load_seconds=settings.load_seconds,
            memory=memory.limit,
            max_loaded=settings.max_loaded,
            allow_unknown=settings.allow_unknown,
        )
        metrics.process(memory.limit, lambda: self.ready)

    @property
    def ready(self) -> bool:
        return self._started and not self.draining and any(model.state != "failed" for model in self._models)

    @property
    def hanging(self) -> bool:
        """Whether a load that was given up has not returned."""
        return self._loader.hanging

    @property
    def count(self) -> int:
        return len(self._models)

    def check_ready(self) -> None:
        """Raises NotReadyError with the reason if the service is not ready."""
        self._check_open()
        if not self.ready:
            raise NotReadyError("No model can be loaded; GET /v1/models tells why.")

    def list(self) -> Sequence[Model]:
        """All models, sorted by name."""
        if not self._models or not self._models[0].name:
            self._check_open()
        return self._models

    def is_default(self, model: Model) -> bool:
        return model is self._default()

    def find(self, name: str | None) -> Model:
        """The model of this name; None: the default one."""
        self._check_open()
        if name is None:
            model = self._default()
            if model is None:
                sentence = f"This service has several models; name one in model: {self._names()}."
                raise InvalidFieldError(sentence, "model")
            return model
        for model in self._models:
            if model.name == name:
                return model
        raise self._unknown(name)

    async def load(self, model: Model, deadline: float | None, watch_client: WatchClient) -> ServedModel:
        """A model's ServedModel, loaded first if need be; it stays loaded until the caller's next await."""
        while (served := model.available) is None:
            if model.removed:
                raise self._unknown(model.name)
            if model.failure is not None and time.monotonic() < model.retry_at:
                raise cannot_load(model)
            self._loader.request_load(model)
            await model.wait(deadline, watch_client)
        return served

    def loaded(self, model: Model) -> ServedModel:
        """A model's ServedModel; NotReadyError if it is not loaded."""
        if model.served is None:
            raise NotReadyError(
                f"The model {model.name!r} is {model.state}; what computes it is known once a request has loaded it."
            )
        return model.served

    def engines(self) -> Sequence[EngineInterface]:
        """All that are alive: those that serve, and those that were replaced and finish."""
        return self._loader.all_engines()

    def put(self, engine: EngineInterface) -> None:
        """Serve with this engine alone from now on."""
        self._models = self._models or [Model()]
        self._loader.put(self._models[0], self._loader.served(engine))
        self._started = True

    async def start(self) -> None:
        """Load models at startup without blocking the event loop; raises if none can serve."""
        if self._settings.models is None:
            self._models = [Model()]
            await self._loader.swap(self._models[0], None)
        else:
            found = await self._find_bundles(self._settings.models)
            self._add([Model(bundle) for bundle in found])
            if self._settings.default_model is not None and self._default() is None:
                raise StartError(f"--default-model takes one of {self._names()}, not {self._settings.default_model!r}.")
            await self._load_at_once(self._models)
            if all(model.state == "failed" for model in self._models):
                reasons = " ".join(f"{model.name}: {model.failure}" for model in self._models)
                raise StartError(f"no bundle in {self._settings.models} can be served. {reasons}")
        self._started = True
        for name in {pair.model for pair in self._settings.language_pairs} - {model.name for model in self._models}:
            log.warning("--language-pairs has %r, and no model has that name; there is %s", name, self._names())

    async def reload(self, directory: Path | None = None, name: str | None = None) -> Model | None:
        """Reload the model of this name, or all that have changed; returns that model, or None if it was all.

        A bundle that is refused raises InvalidFieldError, and the old one keeps serving.
        """
        async with self._reloading:
            self._check_open()
            if self._settings.models is None:
                model = self.find(name)
                await self._replace(model, directory, "bundle")
                return model
            if directory is not None:
                sentence = f"bundle is for a service of one; put it into {self._settings.models}, and leave bundle out."
                raise InvalidFieldError(sentence, "bundle")
            known = None if name is None else self.find(name)
            await self._take_up(self._settings.models, known)
            return known

    def refuse(self) -> None:
        """Accept no new requests; accepted ones go on."""
        self.draining = True

    async def close(self, grace: float) -> None:
        """Accept no new requests, finish the accepted ones within `grace` seconds, and close every engine."""
        self.refuse()
        await self._loader.close(grace)

    async def _take_up(self, directory: Path, only: Model | None) -> None:
        """Add, replace and remove models to match the directory; with `only`, just that one."""
        try:
            found = {bundle.name: bundle for bundle in await self._find_bundles(directory)}
        except StartError as error:
            raise InvalidFieldError(f"Nothing was reloaded: {error}") from None
        looked_at = self._models if only is None else [only]
        for model in [model for model in looked_at if model.name not in found]:
            self._remove(model)
        changed = [
            model
            for model in looked_at
            if not model.removed and (only or model.failure is not None or _differs(model, found[model.name]))
        ]
        known = {model.name for model in self._models}
        new = [] if only else [Model(bundle) for name, bundle in found.items() if name not in known]
        self._add(new)
        refused = [sentence for model in changed if (sentence := await self._renew(model, found[model.name]))]
        await self._load_at_once(new)
        refused += [f"{model.name}: {model.failure}" for model in new if model.failure is not None]
        if refused:
            raise InvalidFieldError(f"Refused, and what served before serves on: {' '.join(refused)}", "model")

    async def _renew(self, model: Model, bundle: FoundBundle) -> str | None:
        """Give a model another bundle, in place of the loaded one or for its next load; a sentence if it is refused."""
        try:
            replaced = model.served is not None and await self._replace(model, bundle.directory, "model")
        except InvalidFieldError as error:
            model.refuse_bundle(error.message)
        else:
            model.renew(bundle)
            if not replaced:
                await self._load_at_once([model])
        return f"{model.name}: {model.failure}" if model.failure else None

    async def _replace(self, model: Model, directory: Path | None, field: str) -> bool:
        """Swap another bundle in; InvalidFieldError if it is refused, False if the model was unloaded meanwhile."""
        old = model.name
        try:
            if not await self._loader.swap(model, directory):
                return False
        except NotReadyError:
            raise
        except Exception as error:
            self._metrics.model(old).reloaded("refused")
            if field == "bundle" and not hasattr(error, "exit_code") and not isinstance(error, OSError):
                raise
            sentence = sentence_of(error)
            log.error("reload refused, %s still serves: %s", old, sentence)
            raise InvalidFieldError(f"The bundle is refused, and {old} still serves: {sentence}", field) from None
        self._metrics.model(old).reloaded("ok")
        log.info("reloaded: %s in place of %s", model.name, old)
        return True

    def _add(self, models: Sequence[Model]) -> None:
        self._models = sorted([*self._models, *models], key=lambda model: model.name)
        for model in models:
            self._loader.watch(model)
            if model.failure is not None:
                log.error("the model %s cannot be loaded: %s", model.name, model.failure)

    def _remove(self, model: Model) -> None:
        self._models = [other for other in self._models if other is not model]
        served = model.remove()
        log.info("removed: %s", model.name)
        if served is not None:
            self._loader.retire(served)
        else:
            self._loader.forget(model.name)

    async def _load_at_once(self, models: Sequence[Model]) -> None:
        """Load the models that fit and have not failed, the default one first; with --load lazy, none."""
        if self._settings.load == "eager":
            ordered = sorted(models, key=lambda model: not self.is_default(model))
            loads = [self._loader.request_load(model, evict=False) for model in ordered if model.failure is None]
            await asyncio.gather(*loads)

    async def _find_bundles(self, directory: Path) -> Sequence[FoundBundle]:
        precision = self._settings.precision
        found: list[FoundBundle] = await self._loader.in_time(
            lambda: find_bundles(directory, precision), directory, "read"
        )
        return found

    def _default(self) -> Model | None:
        if len(self._models) == 1 and self._settings.default_model is None:
            return self._models[0]
        wanted = self._settings.default_model or DEFAULT
        return next((model for model in self._models if model.name == wanted), None)

    def _check_open(self) -> None:
        if not self._started:
            raise NotReadyError("The model is still being loaded; try again in a second.")
        if self.draining:
            raise stopping()

    def _unknown(self, name: str) -> UnknownModelError:
        verb = "there is" if len(self._models) == 1 else "there are"
        return UnknownModelError(f"There is no model {name[:100]!r} here; {verb} {self._names()}.", "model")

    def _names(self) -> str:
        names = [repr(model.name) for model in self._models]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        return ", ".join(names[:MOST_NAMES]) + more


def _differs(model: Model, found: FoundBundle) -> bool:
    return model.bundle is None or model.bundle.digest != found.digest
