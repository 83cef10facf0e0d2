"""Keys with names, and the limits of each name, as the settings give them.

`name:key` is a key of the client `name`; a key without a colon has no name. Several keys may have one name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KEY = re.compile(r"[!-+\--~]+")  # visible ASCII without the comma, which separates keys
NAME = re.compile(r"[A-Za-z0-9._-]{1,40}")
NO_NAME = ""  # of requests without a key, and with a key that has no name
ANY_NAME = "*"  # in a limit: each name that has no limit of its own, and all keys without a name together
LARGEST_LIMIT = 10**12


@dataclass(frozen=True)
class ClientLimit:
    """What a client may take in any minute; 0: no limit."""

    name: str
    requests: int
    tokens: int


def split_key(text: str) -> tuple[str, str]:
    """Name and key of one entry of `api_keys` or `admin_keys`."""
    name, colon, key = text.partition(":")
    return (name, key) if colon else (NO_NAME, text)


def is_key(text: str) -> bool:
    name, key = split_key(text)
    return KEY.fullmatch(key) is not None and (":" not in text or NAME.fullmatch(name) is not None)


def key_names(entries: tuple[str, ...]) -> set[str]:
    return {split_key(each)[0] for each in entries}


def read_keys(text: str) -> tuple[str, ...]:
    return tuple(key.strip() for key in text.split(","))


def read_limits(text: str) -> tuple[ClientLimit, ...]:
    """Limits from `name:requests:tokens,...`; ValueError for anything else."""
    limits = [_read_limit(each.strip()) for each in text.split(",")]
    if len({limit.name for limit in limits}) < len(limits):
        raise ValueError("a name twice")
    return tuple(limits)


def unknown_limits(limits: tuple[ClientLimit, ...], entries: tuple[str, ...]) -> list[str]:
    """Names that have a limit and no key."""
    names = key_names(entries)
    return [limit.name for limit in limits if limit.name not in names and not (limit.name == ANY_NAME and names)]


def _read_limit(text: str) -> ClientLimit:
    name, requests, tokens = text.split(":")
    if name != ANY_NAME and NAME.fullmatch(name) is None:
        raise ValueError("no name")
    if not all(re.fullmatch("[0-9]{1,13}", number) and int(number) <= LARGEST_LIMIT for number in (requests, tokens)):
        raise ValueError("no number")
    return ClientLimit(name, int(requests), int(tokens))
