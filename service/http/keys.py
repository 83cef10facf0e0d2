"""API keys: which paths need a key, and which of them an admin key."""

from __future__ import annotations

import hmac

from service.errors import UnauthorizedError
from service.http.errors import ForbiddenError
from service.settings import Settings

OPEN_PATHS = ("/", "/healthz", "/readyz", "/v2/health/live", "/v2/health/ready")
OPEN_FILES = ("/docs/", "/page/")  # static files without data, like /
ADMIN_REQUESTS = (("POST", "/v1/reload"),)


class Keys:
    """An admin key may do what an API key may, and ADMIN_REQUESTS."""

    def __init__(self, settings: Settings) -> None:
        self._api = [key.encode() for key in settings.api_keys]
        self._admin = [key.encode() for key in settings.admin_keys]

    def check(self, method: str, path: str, authorization: bytes) -> None:
        """Refuse a request that lacks the key for it."""
        if (method, path) in ADMIN_REQUESTS:
            self._check_admin(authorization)
            return
        if not self._api or path in OPEN_PATHS or path.startswith(OPEN_FILES):
            return
        if not _matches(authorization, [*self._api, *self._admin]):
            raise UnauthorizedError("The API key is missing or wrong; send the header Authorization: Bearer KEY.")

    def _check_admin(self, authorization: bytes) -> None:
        if _matches(authorization, self._admin):
            return
        if not self._admin:
            raise ForbiddenError(
                "Reloading over HTTP needs admin keys to be set (ATTENDANT_ADMIN_KEYS); the signal SIGHUP reloads too."
            )
        if _matches(authorization, self._api):
            raise ForbiddenError("This API key may not reload; send an admin key (ATTENDANT_ADMIN_KEYS).")
        raise UnauthorizedError("The admin key is missing or wrong; send the header Authorization: Bearer KEY.")


def _matches(authorization: bytes, keys: list[bytes]) -> bool:
    """Whether the header has one of the keys; in constant time, so that timing tells nothing about them."""
    scheme, _, given = authorization.partition(b" ")
    matches = [hmac.compare_digest(given.strip(), key) for key in keys]
    return scheme.lower() == b"bearer" and any(matches)
