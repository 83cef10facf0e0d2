"""The output directory of a bulk run: shards, records that were set aside, and what is needed to resume a stopped run.

manifest.json              what the run was begun with; a resumed run must match it
progress.jsonl             a line for each finished shard, with the position of the input where the next one begins
part-00000.SUFFIX          the answers, one for each record of the input, in order
part-00000.errors.jsonl    the records of the same shard that could not be answered, where there are any

A shard is written to a temporary file and renamed; then its line is added. A resumed run writes every shard again that
progress.jsonl does not list.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from attendant.service.bulk.formats import Format

try:
    import fcntl
except ImportError:  # not on this platform: two processes in one directory go undetected
    fcntl = None  # type: ignore[assignment]

FORMAT_VERSION = 1
MANIFEST, PROGRESS = "manifest.json", "progress.jsonl"
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # what a file system without locks answers
DRAWN = ("seed", "created")  # chosen when a run begins, unless they are given

Json = dict[str, Any]


class OutputError(Exception):
    """A directory that this run cannot write to, or cannot go on in."""

    exit_code = 2


@dataclass(frozen=True)
class Shard:
    """A finished shard."""

    shard: int
    file: int  # of the input, from 0
    position: int  # in the file, where the next record begins
    records: int
    failed: int
    bytes: int  # of the shard's file


@dataclass(frozen=True)
class Place:
    """Where the next record is."""

    file: int = 0
    position: int = 0  # bytes or rows
    line: int = 0  # records of this file that came before
    place: int = 0  # records of all files that came before
    shard: int = 0
    failed: int = 0


class Output:
    """An output directory, locked by this process."""

    def __init__(self, directory: Path, suffix: str) -> None:
        self.directory, self._suffix = directory, suffix
        self.shards: list[Shard] = []
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = (directory / ".lock").open("w")
        except FileExistsError:
            raise OutputError(f"--output {directory} is a file; name an empty directory.") from None
        except OSError as error:
            raise OutputError(f"--output {directory} cannot be written: {error.strerror}.") from None
        try:
            if fcntl is not None:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in NO_LOCKS:
                return
            self._lock.close()
            if isinstance(error, BlockingIOError):
                raise OutputError(f"{directory} is being written by another process.") from None
            raise OutputError(f"--output {directory} cannot be locked: {error.strerror}.") from None

    def close(self) -> None:
        self._lock.close()

    def begun(self) -> Json | None:
        """The manifest of a run that was begun here, or None in an empty directory."""
        path = self.directory / MANIFEST
        if path.exists():
            found: Json = json.loads(path.read_text(encoding="utf-8"))
            return found
        if any(entry.name not in (".lock", MANIFEST + ".new") for entry in self.directory.iterdir()):
            raise OutputError(f"{self.directory} has other files and no {MANIFEST}; name an empty directory.")
        return None

    def begin(self, manifest: Json) -> None:
        text = json.dumps({"format_version": FORMAT_VERSION, **manifest}, indent=2, ensure_ascii=False) + "\n"
        with (self.directory / (MANIFEST + ".new")).open("w", encoding="utf-8") as stream:
            stream.write(text)
            _sync(stream)
        (self.directory / (MANIFEST + ".new")).rename(self.directory / MANIFEST)

    def go_on(self, begun: Json, manifest: Json) -> None:
        """Resume a run that was begun with the same manifest; its finished shards must be there as written."""
        manifest = {"format_version": FORMAT_VERSION, **manifest}
        names = [*manifest, *(name for name in begun if name not in (*manifest, *DRAWN))]
        for name in names:
            if begun.get(name) != manifest.get(name):
                raise OutputError(
                    f"{self.directory} was begun with {name} {_shown(begun.get(name))}, and this run has "
                    f"{_shown(manifest.get(name))}; give the same, or another --output."
                )
        self.shards = self._read_progress()
        for shard in self.shards:
            path = self.path(shard.shard)
            size = path.stat().st_size if path.exists() else None
            if size != shard.bytes:
                raise OutputError(
                    f"{path} has {size} bytes, and {shard.bytes} were written; begin in another --output."
                )

    def _read_progress(self) -> list[Shard]:
        """The finished shards; a last line that was cut off is dropped, and its shard is written again."""
        path = self.directory / PROGRESS
        if not path.exists():
            return []
        whole = path.read_bytes()
        complete = whole[: whole.rfind(b"\n") + 1]
        if complete != whole:
            os.truncate(path, len(complete))
        return [Shard(**json.loads(line)) for line in complete.splitlines()]

    def next_place(self) -> Place:
        if not self.shards:
            return Place()
        last = self.shards[-1]
        return Place(
            file=last.file,
            position=last.position,
            line=sum(shard.records for shard in self.shards if shard.file == last.file),
            place=sum(shard.records for shard in self.shards),
            shard=last.shard + 1,
            failed=sum(shard.failed for shard in self.shards),
        )

    def path(self, shard: int) -> Path:
        return self.directory / f"part-{shard:05d}.{self._suffix}"

    def finish(self, shard: Shard) -> None:
        with (self.directory / PROGRESS).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(shard)) + "\n")
            _sync(stream)
        self.shards.append(shard)


class ShardWriter:
    """Writes one shard under temporary names; `finish` gives its files their own."""

    def __init__(self, output: Output, form: Format, shard: int, file: int) -> None:
        self._output, self.file, self._shard = output, file, shard
        self._path = output.path(shard)
        self._errors_path = self._path.with_name(f"part-{shard:05d}.errors.jsonl")
        self._writer = form.writer(_unfinished(self._path))
        self._errors: IO[str] | None = None
        self.records = self.failed = 0
        self.position = 0

    def add(self, record: Any, position: int) -> None:
        self._writer.add(record)
        self.records += 1
        self.position = position

    def set_aside(self, entry: Json) -> None:
        """Note a record that could not be answered."""
        if self._errors is None:
            self._errors = _unfinished(self._errors_path).open("w", encoding="utf-8")
        self._errors.write(json.dumps(entry, ensure_ascii=False) + "\n")
        self.failed += 1

    def finish(self) -> None:
        if self._errors is None:
            self._errors_path.unlink(missing_ok=True)  # of an attempt that was killed before its progress was written
        else:
            self._errors.close()
            _rename(self._errors_path)
        self._writer.close()
        size = _rename(self._path)
        self._output.finish(Shard(self._shard, self.file, self.position, self.records, self.failed, size))

    def drop(self) -> None:
        """Leave the shard unfinished."""
        self._writer.close()
        if self._errors is not None:
            self._errors.close()


def _unfinished(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def _rename(path: Path) -> int:
    """Sync a temporary file to the disk and give it its name; returns its size in bytes."""
    with _unfinished(path).open("rb+") as stream:
        _sync(stream)
    _unfinished(path).rename(path)
    return path.stat().st_size


def _sync(stream: IO[Any]) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
