"""What every handler needs of the application and of its request, as one dependency: solving each apart costs more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from service.http.models import ModelHolder
from service.http.record import Record
from service.http.submission import Receive
from service.metrics import Metrics
from service.settings import Settings


@dataclass(frozen=True)
class AppState:
    """What the application is made of: `app.state.parts`."""

    settings: Settings
    models: ModelHolder
    metrics: Metrics


@dataclass(slots=True)
class RequestContext:
    settings: Settings
    models: ModelHolder
    metrics: Metrics
    record: Record
    receive: Receive  # tells of the client's disconnect


async def request_context(request: Request) -> RequestContext:
    parts: AppState = request.app.state.parts
    scope = request.scope
    return RequestContext(parts.settings, parts.models, parts.metrics, scope["attendant.record"], request.receive)


Context = Annotated[RequestContext, Depends(request_context)]
