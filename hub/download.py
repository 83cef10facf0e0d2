"""A model's files from the hub into a directory: those that its import needs, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from attendant.common.progress import Count
from attendant.hub import cache as caches
from attendant.hub import client
from attendant.hub.client import Listing
from attendant.hub.errors import HubError
from attendant.hub.files import CONFIG, check_type, shards, small_files, weight_file
from attendant.hub.names import short_name

PARTS = "parts"
MEGABYTE = 10**6


@contextmanager
def downloaded(cache: Path, name: str, revision: str, say: Callable[[str], None]) -> Iterator[Path]:
    """The files of a model, in a directory that is removed at the end; after an error it stays, for the next time."""
    home = caches.home_of(cache, name)
    with locked_home(home, name, say):
        listing = client.list_files(name, revision)
        work = home / f"{listing.commit}{caches.PARTIAL}"
        yield download(name, listing, work, say)
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def locked_home(home: Path, name: str, say: Callable[[str], None]) -> Iterator[int | None]:
    """The model's lock; HubError if the cache cannot be written to."""
    try:
        lock = caches.locked(home, lambda: say(f"another process makes {name}; waiting for its end."))
        handle = lock.__enter__()
    except OSError as error:
        raise HubError(f"the cache {home.parent} cannot be written: {error.strerror}; see --cache-dir.") from None
    try:
        yield handle
    finally:
        lock.__exit__(None, None, None)


def download(name: str, listing: Listing, work: Path, say: Callable[[str], None]) -> Path:
    """The directory of the model's files, in `work`; it is named like the model, which importers go by."""
    out, parts, files = work / short_name(name), work / PARTS, listing.files
    out.mkdir(parents=True, exist_ok=True)

    def fetch(file: str, add: Callable[[int], None] = lambda _: None) -> None:
        client.fetch(name, listing.commit, file, files[file], out / file, parts, add)

    if CONFIG not in files:
        raise HubError(
            f"{name} has no {CONFIG}, so it is no model of the transformers library, and cannot be imported."
        )
    fetch(CONFIG)
    check_type(out / CONFIG, name)
    for file in small_files(files):
        fetch(file)
    weights = [weight_file(files, name)]
    if weights[0].endswith(".json"):
        fetch(weights[0])
        weights = shards(out / weights[0], files, name)
    total = sum(files[file].size for file in weights)
    _check_space(out, total - caches.size_of(work), name)
    say(f"{name}, commit {listing.commit[:12]}: {total / 1e6:,.1f} MB to {work.parent}")
    count = Count("downloading", "MB", round(total / MEGABYTE))
    try:
        add = _megabytes(count)
        for file in weights:
            fetch(file, add)
    finally:
        count.close()
    return out


def _megabytes(count: Count) -> Callable[[int], None]:
    """Counts bytes in whole megabytes."""
    done = shown = 0

    def add(number: int) -> None:
        nonlocal done, shown
        done += number
        more = done // MEGABYTE - shown
        if more > 0:
            shown += more
            count.add(more)

    return add


def _check_space(directory: Path, needed: int, name: str) -> None:
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise HubError(
            f"{name} needs {needed / 1e6:,.0f} MB more in {directory.parent.parent.parent}, where {free / 1e6:,.0f} MB "
            "are free: free some space, or see --cache-dir."
        )
