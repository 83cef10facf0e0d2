"""`attendant generate`: decode texts or lines of standard input without a server, in order, in constant memory.

With `--input` and `--output` it reads files and writes shards: service/bulk/command.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import fields
from typing import IO, Any

from attendant.export.bundle import read_bundle
from attendant.service.bulk import command
from attendant.service.bulk.formats import TextFormat
from attendant.service.bulk.pipeline import answered
from attendant.service.bulk.progress import Progress
from attendant.service.bulk.texts import complaint, lines_of, plan_text
from attendant.service.commands.info import find_bundle
from attendant.service.commands.named import with_bundle
from attendant.service.engine.interface import EngineInterface
from attendant.service.errors import InvalidFieldError, ServiceError
from attendant.service.requests.schemas import GenerateRequest
from attendant.service.requests.served import ServedModel
from attendant.service.requests.validation import validate
from attendant.service.settings import Settings, flag, read_settings, takes
from attendant.service.text.glossary import digest_of

NOT_OPTIONS = (
    "inputs",
    "stream",
    "all_or_nothing",
    "timeout_ms",
    "model",
    "format",  # --html; --format is that of files
)  # fields of POST /v1/generate that have no flag
# Options that stay texts, even if they look like JSON.
TEXTS = ("target_prefix", "source_language", "target_language", "glossary", "protect_pattern")
SEARCH = GenerateRequest.model_fields.keys() - NOT_OPTIONS
SETTINGS = ("bundle", "model", "revision", "cache_dir", "provider", "precision", "threads", "lanes", "max_rows")


class GenerateUsageError(Exception):
    exit_code = 2


class FailedLinesError(Exception):
    exit_code = 1


def generate(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    options, request = read_arguments(parser, arguments)
    given = {name: getattr(options, name) for name in SETTINGS if hasattr(options, name)}
    settings = with_bundle(read_settings(given, os.environ))
    served = ServedModel(load_engine(settings))
    try:
        check_options(request, served)
        if options.bulk is not None:
            command.run(served, request, options, options.bulk, bundle_digest(settings))
            return
        sources: Iterable[bytes] = [text.encode("utf-8", "surrogateescape") for text in options.texts]
        name = "text" if options.texts else "line"
        if not options.texts:
            sources = lines_of(_standard_input())
        failed, count = run(served, request, sources, sys.stdout.buffer, name, options.json)
    finally:
        served.engine.close()
    if failed:
        raise FailedLinesError(f"{failed:,} of {count:,} {name}s could not be answered; the sentences above say why.")


def read_arguments(parser: argparse.ArgumentParser, arguments: list[str]) -> tuple[argparse.Namespace, GenerateRequest]:
    """The parsed flags, and the search options among them as a request whose inputs are a placeholder."""
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="source texts (default: lines of standard input)")
    parser.add_argument("--json", action="store_true", help="one JSON object per line, as in POST /v1/generate")
    for setting in fields(Settings):
        if setting.name in SETTINGS:
            about = f"{setting.metadata['about']} ({takes(setting)})"
            parser.add_argument(flag(setting.name), default=argparse.SUPPRESS, metavar="VALUE", help=about)
    for name, described in GenerateRequest.model_fields.items():
        if name == "logprobs":
            parser.add_argument("--logprobs", action="store_true", help=f"{described.description}; with --json")
        elif name not in NOT_OPTIONS:
            default = "" if described.default is None else f" (default: {json.dumps(described.default)})"
            about = f"{described.description}{default}".replace("%", "%%")
            parser.add_argument(flag(name), default=argparse.SUPPRESS, metavar="VALUE", help=about)
    parser.add_argument("--html", action="store_true", help="texts are HTML: tags stand where the alignment puts them")
    command.add_arguments(parser)
    options = parser.parse_args(arguments)
    searched = {name: value for name, value in vars(options).items() if name in SEARCH}
    named = [flag(name) for name in searched if name != "logprobs"]
    options.bulk = command.check_arguments(options, named)
    if options.bulk is None and options.logprobs and not options.json:
        raise GenerateUsageError("--logprobs is for --json; a line of text has no place for them.")
    given = {name: value if name in TEXTS else _value(value) for name, value in searched.items()}
    if options.html:
        given["format"] = "html"
    try:
        return options, validate(GenerateRequest, {"inputs": "-", **given})
    except ServiceError as error:
        raise GenerateUsageError(_with_flags(error.message)) from None


def load_engine(settings: Settings) -> EngineInterface:
    from attendant.service.engine.engine import Engine, EngineSettings

    engine = Engine(read_bundle(find_bundle(settings.bundle), weights=False), EngineSettings.of(settings))
    engine.start()
    return engine


def check_options(request: GenerateRequest, served: ServedModel) -> None:
    """Refuse options that this model cannot honour: plan an empty text, which is refused only after the options."""
    try:
        plan_text(request, served, "", 0)
    except InvalidFieldError as error:
        if error.field != "inputs":
            raise GenerateUsageError(_with_flags(error.message)) from None


def bundle_digest(settings: Settings) -> str:
    """SHA-256 of the bundle's manifest, which lists the digests of all its files, and of its glossaries."""
    bundle = find_bundle(settings.bundle)
    return hashlib.sha256((bundle / "manifest.json").read_bytes()).hexdigest() + digest_of(bundle)


def run(
    served: ServedModel, request: GenerateRequest, sources: Iterable[bytes], out: IO[bytes], name: str, as_json: bool
) -> tuple[int, int]:
    """Write a line for every text, in order; returns how many texts failed, and how many there were."""
    progress = Progress(name, shows=name == "line" and not out.isatty())
    form = TextFormat(served, request, as_json)
    records = (((place, text), len(text)) for place, text in enumerate(sources))
    failed = count = 0
    try:
        for item in answered(served.engine, records, lambda pair: form.plan(pair[1], pair[0]), form.ahead, out.flush):
            count += 1
            try:
                if item.error is not None:
                    raise item.error
                line = item.work(item.outcomes)
            except Exception as error:
                failed += 1
                progress.say(f"{name} {count}: {complaint(error)}")
                line = form.refuse(item.record[1], count - 1, error)
            out.write(line)
            progress.add()
        out.flush()
    finally:
        progress.close()
    return failed, count


def _with_flags(message: str) -> str:
    """Replace field names by their flags where a word can only be a field name: with an underscore, or at the start."""
    for name in GenerateRequest.model_fields:
        if "_" in name:
            message = re.sub(rf"\b{name}\b", flag(name), message)
    first = message.split(" ", 1)[0]
    return f"--{message}" if first in GenerateRequest.model_fields else message


def _value(text: Any) -> Any:
    """The text parsed as JSON (a number, true, null), or the text itself if it is none."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def _standard_input() -> IO[bytes]:
    if sys.stdin.isatty():
        print("reading lines from the terminal; Ctrl-D ends.", file=sys.stderr)
    # Not sys.stdin itself: the interpreter closes it at exit, and would wait for the reader thread to release it.
    return open(sys.stdin.fileno(), "rb", closefd=False)
