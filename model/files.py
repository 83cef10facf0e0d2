"""Files that are complete or absent: written under another name, flushed, then renamed. Also locks and digests."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attendant.model.errors import UserError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


def write_directory(path: Path, fill: Callable[[Path], None]) -> None:
    """Fill a directory beside `path` and rename it to `path` when it is complete; it is removed if that fails."""
    beside = path.with_name(f".{path.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        fill(beside)
        for file in beside.iterdir():
            _flush(file)
        if path.exists():
            shutil.rmtree(path)
        beside.rename(path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def check_writable(out: Path, beside: bool = False) -> None:
    """UserError, before any work is done, if the directory `--out` cannot be made or written to.

    `beside`: it is written under another name in its parent directory, and renamed.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; name a directory.")
    directory = out.absolute().parent if beside else out.absolute()
    while not directory.exists():
        directory = directory.parent
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # a full disk has a sentence of its own
            raise UserError(f"--out {out} cannot be written: {error.strerror}.") from None


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock a directory, which is made if need be, against other processes that call this; UserError if one has it.

    The lock ends with the process, however that ends. On a file system without locks nothing is locked.
    """
    made = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory, os.O_RDONLY) if fcntl is not None else None
    try:
        if handle is not None and not _lock(handle):
            raise UserError(f"{directory} is in use by another process; wait, or name another.")
        yield
    finally:
        if handle is not None:
            os.close(handle)
        if made:
            with contextlib.suppress(OSError):  # it is not empty
                directory.rmdir()


def _lock(handle: int) -> bool:
    """False if another process has the lock."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def write_text(path: Path, text: str) -> None:
    with _beside(path) as beside:
        beside.write_text(text, encoding="utf-8")


def write_json(value: Any, path: Path) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A path to write to, which replaces `path` at the end, or is removed if writing fails."""
    beside = path.with_name(f".{path.name}.partial")
    try:
        yield beside
        _flush(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    with path.open("rb") as handle:
        os.fsync(handle.fileno())
