"""A model of Hugging Face by its name, as a bundle in the cache; it is made there by another process if need be."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from attendant.export.bundle import BundleError, read_manifest
from attendant.hub import cache as caches
from attendant.hub.children import run_command
from attendant.hub.names import MAIN, check_name, check_revision
from attendant.service.errors import StartError
from attendant.service.settings import Settings


def with_bundle(settings: Settings) -> Settings:
    """The settings with the bundle of the model that they name, which is made if it is not there."""
    if settings.model is None:
        return settings
    name, revision = check_name(settings.model), check_revision(settings.revision or MAIN)
    cache = caches.cache_directory(settings.cache_dir)
    found = caches.find(cache, name, revision)
    if found is None or not _is_readable(found):
        _say(f"{name} is not ready in {cache}: it is made of the model of that name on Hugging Face.")
        again = "--if-missing" if found is None else "--force"
        run_command(["models", "pull", name, "--revision", revision, "--cache-dir", str(cache), again], None, _say)
        found = caches.find(cache, name, revision)
    if found is None:
        raise StartError(f"{name} was made, and is not in the cache {cache} any more; start again.")
    return replace(settings, bundle=found, model=None, revision=None)


def cached_bundle(name: str) -> Path:
    """The bundle of a model that is in the cache already; StartError if it is not."""
    cache = caches.cache_directory(None)
    if found := caches.find(cache, name):
        return found
    raise StartError(
        f"{name} is no directory, and no model of that name is in the cache {cache}; attendant models pull {name} puts "
        "it there."
    )


def _say(line: str) -> None:
    """On standard error: standard output is for answers, and for the line that says where the service listens."""
    print(line, file=sys.stderr, flush=True)


def _is_readable(directory: Path) -> bool:
    """Whether this version reads the bundle's format; what else is wrong with a bundle is said when it is loaded."""
    try:
        read_manifest(directory)
    except BundleError:
        return False
    return True
