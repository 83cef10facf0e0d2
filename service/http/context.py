"""What every handler needs of the application and its request, as one dependency: FastAPI is slower with several."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from attendant.service.engine.tasks import Outcome, Task
from attendant.service.http.building import Builder
from attendant.service.http.endpoints.v2_statistics import Statistics
from attendant.service.http.guard.clients import Clients
from attendant.service.http.guard.keys import Keys
from attendant.service.http.guard.record import Record
from attendant.service.http.guard.timing import note_outcomes, note_tasks
from attendant.service.http.submission import DisconnectWatch, Receive, TaskStreams, run_tasks
from attendant.service.memory import Holding, MemoryAccount
from attendant.service.models.registry import Models
from attendant.service.requests.served import ServedModel
from attendant.service.settings import Settings
from attendant.service.text.tokenizer import LONG_TEXT
from attendant.service.watch.metrics import Metrics

Plan = TypeVar("Plan")


@dataclass(frozen=True)
class AppState:
    """What the application is made of: `app.state.parts`."""

    settings: Settings
    models: Models
    metrics: Metrics
    keys: Keys
    clients: Clients
    memory: MemoryAccount
    builder: Builder = field(default_factory=Builder)
    statistics: Statistics = field(default_factory=Statistics)


@dataclass(slots=True)
class RequestContext:
    settings: Settings
    models: Models
    metrics: Metrics
    record: Record
    builder: Builder
    memory: Holding  # what this request holds
    statistics: Statistics
    receive: Receive  # the ASGI callable; signals the client's disconnect

    @property
    def client(self) -> str | None:
        """What tells the client from others, as far as its key does."""
        return self.record.client.id or None

    async def plan(
        self, name: str | None, characters: int, deadline: float | None, plan: Callable[[ServedModel], Plan]
    ) -> tuple[ServedModel, Plan]:
        """The model of this name, loaded if need be, and the result of `plan`; submit it before the next await.

        After an await the model may have been replaced. Long texts are planned, so tokenized, in a thread.
        """
        models = self.models
        model = models.find(name)
        self.record.model = model.name
        model.use(self.record.arrival)
        while True:
            served = model.available
            if served is None:
                watch_client = partial(DisconnectWatch, asyncio.get_running_loop(), self.receive)
                served = await models.load(model, deadline, watch_client)
                self.record.mark("load")
            if characters <= LONG_TEXT:
                planned = plan(served)
                self.record.mark("tokenize")
                return served, planned
            with model.planning_texts():
                planned = await asyncio.to_thread(plan, served)
            self.record.mark("tokenize")
            if model.served is served:  # not replaced meanwhile
                return served, planned

    async def run(
        self, served: ServedModel, tasks: Sequence[Task], deadline: float | None, field: str
    ) -> list[Outcome]:
        """The outcome of every task, in their order: see `run_tasks`."""
        metrics = self.metrics.model(self.record.model)
        note_tasks(self.record, metrics, tasks)
        outcomes: list[Outcome] = []
        if not tasks:
            return outcomes
        try:
            outcomes = await run_tasks(served.engine, tasks, deadline, self.receive, field, self.client)
            return outcomes
        finally:
            note_outcomes(self.record, metrics, outcomes)

    def stream(self, served: ServedModel, tasks: Sequence[Task], deadline: float | None, field: str) -> TaskStreams:
        """The events of the tasks, which are submitted at once."""
        metrics = self.metrics.model(self.record.model)
        note_tasks(self.record, metrics, tasks)
        note = partial(note_outcomes, self.record, metrics)
        return TaskStreams(served.engine, tasks, deadline, self.receive, field, self.client, note)


async def request_context(request: Request) -> RequestContext:
    parts: AppState = request.app.state.parts
    scope = request.scope
    record = scope["attendant.record"]
    scope["attendant.body"].parsed()
    memory = scope["attendant.memory"]
    return RequestContext(
        settings=parts.settings,
        models=parts.models,
        metrics=parts.metrics,
        record=record,
        builder=parts.builder,
        memory=memory,
        statistics=parts.statistics,
        receive=request.receive,
    )


Context = Annotated[RequestContext, Depends(request_context)]
