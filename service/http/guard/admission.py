"""The checks in front of a handler: headers, key and body, with the policy of the route that was matched."""

from __future__ import annotations

import re

from starlette.types import Scope

from attendant.service.errors import NotFoundError
from attendant.service.http.errors import HeadersTooLargeError
from attendant.service.http.guard.body import Body
from attendant.service.http.guard.keys import Keys
from attendant.service.http.guard.policy import Access, Policy
from attendant.service.http.guard.record import record_of

LARGEST_HEADERS = 64 * 2**10  # bytes, the path included
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
PROXIED = "attendant.proxied"  # in a scope: the request came through a proxy that would pass it to any replica


async def admit(scope: Scope, policy: Policy, key_in_body: bool = False) -> None:
    """Refuse a request that may not reach the handler; else read its body, within its limits."""
    record = record_of(scope)
    record.policy = policy
    _check_headers(scope)
    if policy.one_replica and scope.get(PROXIED):
        sentence = (
            f"{record.path} is of one replica; `python -m attendant.service.ray.serve` lists the address of each."
        )
        raise NotFoundError(sentence)
    if CONTROL.search(record.path):  # no path of ours, although routes ignore a line feed at the end: a key is enough
        check_key(scope, policy if policy.access is Access.OPEN else Policy(Access.API_KEY))
        raise nothing_at(ascii(record.path[:100]))
    if not key_in_body:  # else the caller checks it, once the body is read
        check_key(scope, policy)
    if policy.names_model and not key_in_body:
        scope["app"].state.parts.clients.admit(record.client)
    body: Body = scope["attendant.body"]
    await body.read()
    record.mark("read")


def check_key(scope: Scope, policy: Policy, authorization: bytes | None = None) -> None:
    """`authorization` is given where it is not in the header of this name."""
    keys: Keys = scope["app"].state.parts.keys
    record = record_of(scope)
    given = record.headers.get(b"authorization", b"") if authorization is None else authorization
    record.client = keys.check(policy.access, given)


def nothing_at(path: str) -> NotFoundError:
    return NotFoundError(f"There is nothing at {path[:100]}; /docs lists what there is.")


def _check_headers(scope: Scope) -> None:
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    if size + len(scope.get("raw_path") or b"") + len(scope["query_string"]) > LARGEST_HEADERS:
        raise HeadersTooLargeError(f"The headers are too large: at most {LARGEST_HEADERS} bytes are taken.")
