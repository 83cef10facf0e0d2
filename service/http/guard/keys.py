"""API keys and admin keys: whether a request has the one that its route wants, and whose it is."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from attendant.service.client_keys import NO_NAME, split_key
from attendant.service.errors import UnauthorizedError
from attendant.service.http.errors import ForbiddenError
from attendant.service.http.guard.policy import Access
from attendant.service.settings import Settings


@dataclass(frozen=True)
class Client:
    """Whoever sent a request, as far as its key tells."""

    name: str = NO_NAME  # for the log and the metrics
    id: str = ""  # tells clients apart: the name, or which one of the keys without a name


NOBODY = Client()


class Keys:
    """An admin key may do what an API key may, and what wants an admin key."""

    def __init__(self, settings: Settings) -> None:
        self._api = _clients(settings.api_keys, "key")
        self._admin = _clients(settings.admin_keys, "admin key")

    def check(self, access: Access, authorization: bytes) -> Client:
        """The client of a request; refuses one whose Authorization header lacks the key for this access."""
        if access is Access.ADMIN_KEY:
            return self._check_admin(authorization)
        client = _find(authorization, [*self._api, *self._admin])
        if access is Access.API_KEY and self._api and client is None:
            raise UnauthorizedError("The API key is missing or wrong; send the header Authorization: Bearer KEY.")
        return client or NOBODY

    def declares(self, access: Access) -> bool:
        """Whether OpenAPI should say that this access wants a key."""
        return bool({Access.OPEN: [], Access.API_KEY: self._api, Access.ADMIN_KEY: self._admin}[access])

    def _check_admin(self, authorization: bytes) -> Client:
        if client := _find(authorization, self._admin):
            return client
        if not self._admin:
            raise ForbiddenError(
                "Reloading over HTTP needs admin keys to be set (ATTENDANT_ADMIN_KEYS); the signal SIGHUP reloads too."
            )
        if _find(authorization, self._api):
            raise ForbiddenError("This API key may not reload; send an admin key (ATTENDANT_ADMIN_KEYS).")
        raise UnauthorizedError("The admin key is missing or wrong; send the header Authorization: Bearer KEY.")


def _clients(entries: tuple[str, ...], kind: str) -> list[tuple[bytes, Client]]:
    """Each key with its client."""
    pairs = [split_key(entry) for entry in entries]
    return [(key.encode(), Client(name, name or f"{kind} {place}")) for place, (name, key) in enumerate(pairs)]


def _find(authorization: bytes, keys: list[tuple[bytes, Client]]) -> Client | None:
    """The client whose key the header has; in constant time, so that timing tells nothing about the keys."""
    if not authorization or not keys:
        return None
    scheme, _, given = authorization.partition(b" ")
    matches = [hmac.compare_digest(given.strip(), key) for key, _ in keys]
    if scheme.lower() != b"bearer" or not any(matches):
        return None
    return keys[matches.index(True)][1]
