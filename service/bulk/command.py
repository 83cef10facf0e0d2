"""`attendant generate --input FILE... --output DIR`: files in, shards out, resumable after each finished shard.

Exit codes: 0 every record was answered; 3 the run is complete, but some records failed and were set aside; 2 bad usage;
1 it did not finish.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attendant.common.version import install_command
from attendant.service.bulk.batch import BatchFormat
from attendant.service.bulk.formats import Format, JsonFormat, Source, TextFormat, TsvFormat
from attendant.service.bulk.pipeline import Item, answered
from attendant.service.bulk.progress import Progress
from attendant.service.bulk.shards import Output, Place, ShardWriter
from attendant.service.bulk.texts import complaint, error_type
from attendant.service.requests.planning import SEEDS
from attendant.service.requests.schemas import GenerateRequest
from attendant.service.requests.served import ServedModel

SUFFIXES = {".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
FORMATS = ("text", "tsv", "jsonl", "openai", "parquet")
SAMPLED_BYTES = 2**20  # hashed at an input's beginning and end, to recognise it when resuming


class BulkUsageError(Exception):
    exit_code = 2


class SetAsideError(Exception):
    exit_code = 3


@dataclass(frozen=True)
class Entry:
    """A record of the input, and where it was."""

    raw: Any
    file: int
    line: int  # from 1, in its file
    place: int  # from 0, in all files
    position: int  # in its file, where the next one begins


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("files to shards, resumable: the same command goes on where it was stopped")
    group.add_argument("--input", nargs="+", type=Path, metavar="FILE", help="files of one format, in this order")
    group.add_argument("--output", type=Path, metavar="DIR", help="an empty directory, or one that was begun")
    group.add_argument("--format", choices=FORMATS, help="of the input (default: by its suffix, else text)")
    group.add_argument("--field", default="text", help="the field or column of the texts, in jsonl and parquet")
    group.add_argument("--shard-lines", type=int, default=10_000, help="records in a shard (default: 10,000)")


def check_arguments(options: argparse.Namespace, given: Sequence[str]) -> str | None:
    """The format of a bulk run, or None if this is no bulk run; `given` are the search flags on the command line."""
    if (options.input is None) != (options.output is None):
        raise BulkUsageError("--input and --output belong together; give both.")
    if options.input is None:
        return None
    if options.texts:
        raise BulkUsageError("give either texts or --input, not both.")
    if options.shard_lines < 1:
        raise BulkUsageError(f"--shard-lines takes a whole number from 1, not {options.shard_lines}.")
    missing = [path for path in options.input if not path.is_file()]
    if missing:
        raise BulkUsageError(f"--input: there is no file {missing[0]}.")
    found = {SUFFIXES.get(path.suffix, "text") for path in options.input}
    if options.format is None and len(found) > 1:
        raise BulkUsageError(
            f"--input has files of several formats ({', '.join(sorted(found))}); give one, or --format."
        )
    name: str = options.format or found.pop()
    if options.json and name not in ("text", "tsv"):
        raise BulkUsageError(f"--json is for lines of text; the output of {name} is {name}.")
    if name == "openai" and given:
        raise BulkUsageError(f"{given[0]} is not for --format openai: each request has its own options.")
    if options.logprobs and (name == "parquet" or (name in ("text", "tsv") and not options.json)):
        raise BulkUsageError("--logprobs is for JSON; give --json, or another format.")
    return name


def run(served: ServedModel, request: GenerateRequest, options: argparse.Namespace, name: str, bundle: str) -> None:
    """Answer all records of all inputs; `bundle` is the digest of the bundle's manifest."""
    first = make_format(name, served, request, options, 0)
    output = Output(options.output, first.suffix)
    try:
        sources = [first.source(path) for path in options.input]  # reports unreadable inputs before the run begins
        begun = output.begun()
        manifest = describe(served, request, options, name, bundle)
        seed, created = (begun or {}).get("seed"), (begun or {}).get("created")
        if begun is None:
            seed, created = secrets.randbelow(SEEDS) if request.seed is None else request.seed, _now()
            output.begin({**manifest, "seed": seed, "created": created})
        else:
            output.go_on(begun, manifest)
        request = request.model_copy(update={"seed": seed})
        form = make_format(name, served, request, options, int(created or 0), int(seed or 0))
        answer_all(served, form, output, sources, options)
    finally:
        output.close()


def make_format(
    name: str, served: ServedModel, request: GenerateRequest, options: argparse.Namespace, created: int, seed: int = 0
) -> Format:
    if name == "openai":
        return BatchFormat(served, created, seed)
    if name == "jsonl":
        return JsonFormat(served, request, options.field)
    if name == "parquet":
        try:
            from attendant.service.bulk.parquet import ParquetFormat
        except ModuleNotFoundError:
            raise BulkUsageError(f"Parquet needs pyarrow; run: {install_command('parquet')}.") from None
        return ParquetFormat(served, request, options.field)
    return (TsvFormat if name == "tsv" else TextFormat)(served, request, options.json)


def describe(
    served: ServedModel, request: GenerateRequest, options: argparse.Namespace, name: str, bundle: str
) -> dict[str, Any]:
    """All that the output's bytes depend on."""
    asked = request.model_dump(exclude={"inputs", "seed"}, exclude_unset=True)  # the rest is by the model's defaults
    return {
        "model": served.name,
        "bundle": bundle,
        "precision": served.description.precision,
        "format": name,
        "json": options.json,
        "field": options.field,
        "shard_lines": options.shard_lines,
        **asked,
        **({} if request.seed is None else {"seed": request.seed}),
        "inputs": [{"size": path.stat().st_size, "sha256_of_ends": _ends(path)} for path in options.input],
    }


def answer_all(
    served: ServedModel, form: Format, output: Output, sources: Sequence[Source], options: argparse.Namespace
) -> None:
    start = output.next_place()
    sizes = [source.total for source in sources]
    initial = sum(sizes[: start.file]) + start.position
    progress = Progress("line", shows=True, total=sum(sizes), initial=initial)
    writer: ShardWriter | None = None
    shard, last = start.shard, (start.file, start.position)
    try:
        for item in answered(served.engine, entries(sources, start), lambda e: form.plan(e.raw, e.place), form.ahead):
            entry: Entry = item.record
            if writer is not None and (writer.file != entry.file or writer.records == options.shard_lines):
                writer.finish()
                writer = None
            if writer is None:
                writer = ShardWriter(output, form, shard, entry.file)
                shard += 1
            add(form, writer, item, options.input[entry.file].name)
            progress.add(sum(sizes[last[0] : entry.file]) - last[1] + entry.position)
            last = (entry.file, entry.position)
        if writer is not None:
            writer.finish()
            writer = None
    finally:
        if writer is not None:
            writer.drop()
        progress.close()
    report(output)


def add(form: Format, writer: ShardWriter, item: Item[Entry], name: str) -> None:
    """Write a record's answer; if it failed, write its error instead and set it aside too."""
    entry = item.record
    try:
        if item.error is not None:
            raise item.error
        record = item.work(item.outcomes)
    except Exception as error:
        record = form.refuse(entry.raw, entry.place, error)
        reason = {"type": error_type(error), "message": complaint(error)}
        writer.set_aside({"file": name, "line": entry.line, **reason, "input": form.shown(entry.raw)})
    writer.add(record, entry.position)


def entries(sources: Sequence[Source], start: Place) -> Iterator[tuple[Entry, int]]:
    """Every record from `start` on, with its size in the unit of its source: bytes or rows."""
    place = start.place
    for file in range(start.file, len(sources)):
        position, line = (start.position, start.line) if file == start.file else (0, 0)
        for raw, size in sources[file].read(position):
            position, line = position + size, line + 1
            yield Entry(raw, file, line, place, position), size
            place += 1


def report(output: Output) -> None:
    records, failed = (sum(getattr(shard, name) for shard in output.shards) for name in ("records", "failed"))
    print(f"{records:,} lines in {len(output.shards):,} shards in {output.directory}.", file=sys.stderr, flush=True)
    if failed:
        raise SetAsideError(
            f"{failed:,} of {records:,} lines could not be answered; part-*.errors.jsonl in {output.directory} say why."
        )


def _now() -> int:
    """Unix time, or the fixed one of reproducible builds."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())


def _ends(path: Path) -> str:
    """A digest of a file's beginning and end: reading all of a large one would take long."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        digest.update(stream.read(SAMPLED_BYTES))
        stream.seek(max(0, path.stat().st_size - SAMPLED_BYTES))
        digest.update(stream.read(SAMPLED_BYTES))
    return digest.hexdigest()
