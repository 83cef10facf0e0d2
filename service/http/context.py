"""What every handler needs of the application and its request, as one dependency: FastAPI is slower with several."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from service.http.record import Record
from service.http.registry import Models
from service.http.submission import Receive
from service.metrics import Metrics
from service.requests.served import ServedModel
from service.settings import Settings
from service.tokenizer import LONG_TEXT

Plan = TypeVar("Plan")


@dataclass(frozen=True)
class AppState:
    """What the application is made of: `app.state.parts`."""

    settings: Settings
    models: Models
    metrics: Metrics


@dataclass(slots=True)
class RequestContext:
    settings: Settings
    models: Models
    metrics: Metrics
    record: Record
    receive: Receive  # the ASGI callable; signals the client's disconnect

    async def plan(
        self, name: str | None, characters: int, deadline: float | None, plan: Callable[[ServedModel], Plan]
    ) -> tuple[ServedModel, Plan]:
        """The model of this name, loaded if need be, and the result of `plan`; submit it before the next await.

        After an await the model may have been replaced. Long texts are planned, so tokenized, in a thread.
        """
        models = self.models
        model = models.find(name)
        self.record.model, model.last_used = model.name, self.record.arrival
        while True:
            served = model.available or await models.load(model, deadline, self.receive)
            if characters <= LONG_TEXT:
                return served, plan(served)
            model.planning += 1
            try:
                planned = await asyncio.to_thread(plan, served)
            finally:
                model.planning -= 1
            if model.served is served:  # not replaced meanwhile
                return served, planned


async def request_context(request: Request) -> RequestContext:
    parts: AppState = request.app.state.parts
    scope = request.scope
    return RequestContext(parts.settings, parts.models, parts.metrics, scope["attendant.record"], request.receive)


Context = Annotated[RequestContext, Depends(request_context)]
