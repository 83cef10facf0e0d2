"""Who may call a route, and how its requests are counted and refused: declared where the route is declared.

    @router.get("/v1/info")
    @policy(Access.API_KEY, label="/v1/info")
    async def info(...): ...

`GuardedRoute` (service/http/route.py) applies it to the route that runs; a route without a policy cannot be made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from attendant.service.errors import ServiceError
from attendant.service.requests.content import Json, error_content

OTHER = "other"  # the metric label of routes that are not counted by themselves, and of paths without a route
ATTRIBUTE = "attendant_policy"  # of a handler

Handler = TypeVar("Handler", bound=Callable[..., Any])


class Access(Enum):
    OPEN = "anyone"
    API_KEY = "an API key or an admin key, where API keys are set"
    ADMIN_KEY = "an admin key, always"


@dataclass(frozen=True)
class Dialect:
    """How errors are written: status and body."""

    error_format: Callable[[ServiceError], tuple[int, Json]]
    prefix: str | None = None  # of paths that speak it even where there is no route


def native_error(error: ServiceError) -> tuple[int, Json]:
    return error.status, {"error": error_content(error)}


NATIVE = Dialect(native_error)


@dataclass(frozen=True)
class Policy:
    access: Access
    label: str = OTHER  # of the metrics' `endpoint`
    names_model: bool = False  # counted by model: the requests that decode
    dialect: Dialect = NATIVE
    headers: Mapping[str, str] = field(default_factory=dict)  # of its errors too
    one_replica: bool = False  # concerns this process alone: refused through a proxy that would pick any


NO_ROUTE = Policy(Access.API_KEY)  # of a path that nothing is at: only whoever has a key is told so


def policy(access: Access, **options: Any) -> Callable[[Handler], Handler]:
    """Declare the policy of the route that is made of this handler; the options are the fields of `Policy`."""
    declared = Policy(access, **options)

    def declare(handler: Handler) -> Handler:
        setattr(handler, ATTRIBUTE, declared)
        return handler

    return declare


def policy_of(handler: Callable[..., Any]) -> Policy:
    """The policy that was declared; TypeError if there is none, so that no route is open by being forgotten."""
    found = getattr(handler, ATTRIBUTE, None)
    if not isinstance(found, Policy):
        raise TypeError(f"{handler.__module__}.{handler.__qualname__} declares no @policy: who may call it?")
    return found
