"""The cache of models by name: the bundles that were made of them, and work under way. Standard library only.

CACHE/OWNER--NAME/revisions.json       the commit that each revision was when it was last asked for
CACHE/OWNER--NAME/COMMIT/              a bundle; it is renamed to this once it is whole
CACHE/OWNER--NAME/COMMIT.json          what it was made with
CACHE/OWNER--NAME/COMMIT.partial/      downloaded files, the run, the bundle: until the bundle is whole
CACHE/OWNER--NAME/lock                 held by the process that makes something of the model
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attendant.hub.errors import HubError
from attendant.hub.names import MAIN, is_commit, is_name

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

SETTING = "ATTENDANT_CACHE_DIR"
REVISIONS, PARTIAL, LOCK = "revisions.json", ".partial", "lock"
MANIFEST = "manifest.json"  # a bundle's


@dataclass(frozen=True)
class CachedModel:
    name: str
    commit: str
    revisions: tuple[str, ...]  # that were this commit when they were asked for
    directory: Path
    size: int  # bytes
    whole: bool  # else its making was interrupted, or is under way


def cache_directory(given: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """The one that is given, else the setting's, else `attendant` in the user's cache directory (XDG)."""
    if given is not None:
        return given.expanduser()
    if named := environment.get(SETTING, "").strip():
        return Path(named).expanduser()
    base = Path(environment.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path("~/.cache").expanduser()) / "attendant"


def home_of(cache: Path, name: str) -> Path:
    """A model's directory."""
    return cache / name.replace("/", "--")


def find(cache: Path, name: str, revision: str = MAIN) -> Path | None:
    """The bundle of a model, if it is there, at a commit, or at what a branch or tag was when last asked for."""
    home = home_of(cache, name)
    commit = revision if is_commit(revision) else read_revisions(home).get(revision)
    directory = home / (commit or "-")
    return directory if (directory / MANIFEST).is_file() else None


def read_revisions(home: Path) -> dict[str, str]:
    """Commits by revision."""
    found = read_json(home / REVISIONS)
    return {revision: commit for revision, commit in found.items() if isinstance(commit, str) and is_commit(commit)}


def record(home: Path, revision: str, commit: str) -> None:
    write_json(home / REVISIONS, {**read_revisions(home), revision: commit})


def list_models(cache: Path) -> list[CachedModel]:
    """Every commit of every model that is there, by name."""
    try:
        homes = sorted(path for path in cache.iterdir() if path.is_dir() and is_name(_name_of(path)))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HubError(f"{cache} cannot be read: {error.strerror}; see --cache-dir.") from None
    return [model for home in homes for model in _commits(home)]


def _commits(home: Path) -> Iterator[CachedModel]:
    revisions = read_revisions(home)
    for path in sorted(home.iterdir()):
        commit = path.name.removesuffix(PARTIAL)
        if is_commit(commit) and path.is_dir():
            names = tuple(sorted(name for name, each in revisions.items() if each == commit))
            whole = path.name == commit and (path / MANIFEST).is_file()
            yield CachedModel(_name_of(home), commit, names, path, size_of(path), whole)


def _name_of(home: Path) -> str:
    return home.name.replace("--", "/", 1)


def remove(cache: Path, name: str, revision: str | None = None) -> int:
    """Remove a model, or what it was at a revision; returns the bytes that are free now."""
    home = home_of(cache, name)
    wanted = revision if revision is None or is_commit(revision) else read_revisions(home).get(revision, "-")
    found = [model for model in _commits(home) if wanted in (None, model.commit)] if home.is_dir() else []
    if not found and not (revision is None and home.is_dir()):
        at = f", revision {revision}," if revision else ""
        raise HubError(f"{name}{at} is not in the cache {cache}; attendant models lists what is.")
    with locked(home, None):
        kept = {key: commit for key, commit in read_revisions(home).items() if wanted not in (None, commit)}
        write_json(home / REVISIONS, kept)  # first, so that nothing names what is half removed
        for model in found:
            _remove_tree(model.directory)
            (home / f"{model.commit}.json").unlink(missing_ok=True)
        if wanted is None:
            shutil.rmtree(home, ignore_errors=True)
    return sum(model.size for model in found)


def _remove_tree(directory: Path) -> None:
    """The manifest goes first: without it nobody takes the rest for a bundle."""
    (directory / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)


def keep(made: Path, directory: Path) -> None:
    """Rename a whole bundle to its place, after its content has reached the disk; one that is there leaves."""
    for path in [*made.rglob("*"), made]:
        with contextlib.suppress(OSError):  # directories cannot be flushed everywhere
            _flush(path)
    old = directory.with_name(f"{directory.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        directory.rename(old)
    made.rename(directory)
    _flush(directory.parent)
    shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def locked(home: Path, waiting: Callable[[], None] | None) -> Iterator[int | None]:
    """Hold the lock of a model, which ends with the process and with the children that are given its descriptor.

    `waiting` is called before another process is waited for; without it, HubError. Where a file system has no locks,
    nothing is locked.
    """
    home.mkdir(parents=True, exist_ok=True)
    handle = os.open(home / LOCK, os.O_RDWR | os.O_CREAT, 0o644) if fcntl is not None else None
    try:
        if handle is not None and not _lock(handle, fcntl.LOCK_NB):
            if waiting is None:
                raise HubError(f"{home} is in use by another process that makes this model; wait for its end.")
            waiting()
            _lock(handle, 0)
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def _lock(handle: int, flags: int) -> bool:
    """False if another process has the lock."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | flags)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def read_json(path: Path) -> dict[str, Any]:
    """Empty if there is no such file, or none that can be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    beside = path.with_name(f".{path.name}.partial")
    beside.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    _flush(beside)
    beside.replace(path)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
