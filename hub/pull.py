"""From a name to a bundle in the cache: a download, then `attendant import` and `attendant export` as processes."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from attendant.common.version import VERSION, install_command
from attendant.hub import cache as caches
from attendant.hub import client
from attendant.hub.children import run_command
from attendant.hub.download import download, locked_home
from attendant.hub.errors import HubError
from attendant.hub.names import MAIN, short_name

NEEDED = ("torch", "onnx", "safetensors")  # to import and export


@dataclass(frozen=True, kw_only=True)
class Making:
    """What a bundle is made with, beside the model's files."""

    source_language: str | None = None
    target_language: str | None = None
    samples: str | None = None  # a path

    def flags(self, *names: str) -> list[str]:
        given = [(f"--{name.replace('_', '-')}", getattr(self, name)) for name in names]
        return [word for flag, value in given if value is not None for word in (flag, value)]


def pull(
    cache: Path,
    name: str,
    revision: str = MAIN,
    making: Making | None = None,
    if_missing: bool = False,
    force: bool = False,
    say: Callable[[str], None] = print,
) -> Path:
    """The bundle of a model at what the hub has for a revision now; it is made if it is not there.

    `making`: None takes a bundle that is there whatever it was made with. `if_missing`: one that is there is taken
    without asking the hub. `force` makes it again.
    """
    home = caches.home_of(cache, name)
    with locked_home(home, name, say) as lock:
        if if_missing and not force and (found := caches.find(cache, name, revision)):
            return found
        listing = client.list_files(name, revision)
        directory, about = home / listing.commit, home / f"{listing.commit}.json"
        made_with = {key: value for key, value in asdict(making or Making()).items() if value is not None}
        same = making is None or caches.read_json(about).get("made_with") == made_with
        if (directory / caches.MANIFEST).is_file() and same and not force:
            caches.record(home, revision, listing.commit)
            say(f"{name}, commit {listing.commit[:12]}, is there already: {directory}")
            return directory
        check_installed(name)
        work = home / f"{listing.commit}{caches.PARTIAL}"
        bundle = _make(name, download(name, listing, work, say), work, making or Making(), lock, say)
        caches.keep(bundle, directory)
        caches.write_json(about, {"name": name, "made_with": made_with, "attendant": VERSION})
        caches.record(home, revision, listing.commit)
        shutil.rmtree(work, ignore_errors=True)
        say(f"{name} is ready: {directory}, {caches.size_of(directory) / 1e6:,.1f} MB")
        return directory


def _make(name: str, files: Path, work: Path, making: Making, lock: int | None, say: Callable[[str], None]) -> Path:
    """Import and export a model that was downloaded; returns the bundle."""
    run, bundle = work / "run", work / "bundle"
    shutil.rmtree(run, ignore_errors=True)
    options = making.flags("source_language", "target_language", "samples")
    run_command(["import", str(files), "--out", str(run), *options], lock, _without_advice(say))
    samples = making.flags("samples")
    exported = ["export", str(run), "--out", str(bundle), "--name", short_name(name), "--force", *samples]
    run_command(exported, lock, say)
    return bundle


def _without_advice(say: Callable[[str], None]) -> Callable[[str], None]:
    """What `attendant import` advises to do next is done here."""
    return lambda line: None if line.startswith("  next: ") else say(line)


def check_installed(name: str) -> None:
    missing = [module for module in NEEDED if importlib.util.find_spec(module) is None]
    if missing:
        raise HubError(
            f"{name} must be imported and exported before it can be served, which needs {', '.join(missing)}; run: "
            f"{install_command('train')}. Or do that on another machine (attendant models pull {name}) and take its "
            "cache along: what is in the cache is served without."
        )
