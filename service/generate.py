"""`attendant generate`: the engine without a server, from texts or lines to lines, in order and in constant memory.

A reader submits lines and puts them in a queue of bounded length; the main thread takes them from it in their order,
waits for each answer and writes it. So an answer is written as soon as it and those before it are there, even while
the next line has not come yet.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import IO, Any

from tqdm import tqdm  # type: ignore[import-untyped]

from export.bundle import read_bundle
from service.engine.interface import EngineInterface
from service.engine.tasks import Finished, Generate, Generated, NewTokens
from service.errors import InvalidFieldError, QueueFullError, ServiceError
from service.http.models import ServedModel
from service.http.planning import input_seed, plan_generate
from service.http.responses import encode, output_content
from service.http.schemas import GenerateRequest
from service.http.validation import validate
from service.info import find_bundle
from service.settings import Settings, flag, read_settings, takes

NOT_OPTIONS = ("inputs", "stream", "timeout_ms", "model")  # fields of POST /v1/generate that have no flag
TEXTS = ("target_prefix", "source_language", "target_language")  # options that are texts, whatever they look like
SETTINGS = ("bundle", "provider", "precision", "threads", "lanes", "max_rows")
LIMITS = Settings(max_beam_size=4096)  # nobody else is served, so only memory limits a beam
LONGEST_LINE = 2**20  # bytes
LINES_AHEAD = 1024  # read, and not written yet
SECONDS_BETWEEN_LINES = 10.0  # of progress
RETRY_SECONDS = 0.01


class GenerateUsageError(Exception):
    exit_code = 2


class FailedLinesError(Exception):
    exit_code = 1


@dataclass(eq=False)
class Line:
    """A text on its way; it has a task where it was understood."""

    number: int  # from 1
    task: Generate | None = None
    answer: Generated | Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def on_event(self, event: NewTokens | Finished) -> None:
        if isinstance(event, Finished):
            self.finish(event.answer)

    def finish(self, answer: Any) -> None:
        self.answer = answer
        self.done.set()


def generate(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    options, request = read_arguments(parser, arguments)
    given = {name: getattr(options, name) for name in SETTINGS if hasattr(options, name)}
    settings = read_settings(given, os.environ)
    served = ServedModel(load_engine(settings))
    try:
        check_options(request, served)
        texts: Iterable[bytes] = [text.encode("utf-8", "surrogateescape") for text in options.texts]
        name = "text" if options.texts else "line"
        if not options.texts:
            texts = lines_of(_standard_input())
        failed, count = run(served, request, texts, sys.stdout.buffer, name, options.json)
    finally:
        served.engine.close()
    if failed:
        raise FailedLinesError(f"{failed:,} of {count:,} {name}s could not be answered; the sentences above say why.")


def read_arguments(parser: argparse.ArgumentParser, arguments: list[str]) -> tuple[argparse.Namespace, GenerateRequest]:
    """The flags, and those of them that are options of the search as a request without inputs of its own."""
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
    options = parser.parse_args(arguments)
    if options.logprobs and not options.json:
        raise GenerateUsageError("--logprobs is for --json; a line of text has no place for them.")
    given = {
        name: value if name in TEXTS else _value(value)
        for name, value in vars(options).items()
        if name in GenerateRequest.model_fields
    }
    try:
        return options, validate(GenerateRequest, {"inputs": "-", **given})
    except ServiceError as error:
        raise GenerateUsageError(_with_flags(error.message)) from None


def load_engine(settings: Settings) -> EngineInterface:
    from service.engine.engine import Engine, EngineSettings

    engine = Engine(read_bundle(find_bundle(settings.bundle)), EngineSettings.of(settings))
    engine.start()
    return engine


def check_options(request: GenerateRequest, served: ServedModel) -> None:
    """Refuse options that this model cannot honour. An empty text is refused last, so any other complaint is theirs."""
    try:
        _plan(request, served, "", 1)
    except InvalidFieldError as error:
        if error.field != "inputs":
            raise GenerateUsageError(_with_flags(error.message)) from None


def run(
    served: ServedModel, request: GenerateRequest, texts: Iterable[bytes], out: IO[bytes], name: str, as_json: bool
) -> tuple[int, int]:
    """Answer every text with a line, in order; how many failed, and how many there were."""
    ahead: queue.Queue[Line | BaseException | None] = queue.Queue(_window(served, request))
    stopping = threading.Event()
    reader = threading.Thread(
        target=_read, args=(served, request, texts, ahead, stopping), name="reader", daemon=True
    )  # waiting for a line that does not come, it must not keep the process
    reader.start()
    progress = Progress(name, shows=name == "line" and not out.isatty())
    failed = count = 0
    try:
        while (line := _next(ahead, out)) is not None:
            count += 1
            if isinstance(line.answer, Exception):
                failed += 1
                progress.say(f"{name} {line.number}: {_complaint(line.answer)}")
            out.write(_json_line(served, request, line) if as_json else _text_line(served, line))
            progress.add()
        out.flush()
    finally:
        stopping.set()
        progress.close()
    return failed, count


def lines_of(stream: IO[bytes]) -> Iterator[bytes]:
    """Lines without their ends. Of one that is too long only the beginning is kept, which `_understood` refuses."""
    while line := stream.readline(LONGEST_LINE):
        rest = line
        while len(rest) == LONGEST_LINE and not rest.endswith(b"\n"):
            rest = stream.readline(LONGEST_LINE)
        yield line.rstrip(b"\r\n")


class Progress:
    """How many lines are done, on standard error: a bar on a terminal, a plain line now and then elsewhere."""

    def __init__(self, name: str, shows: bool) -> None:
        self._name, self._count = name, 0
        self._begun = self._last = time.monotonic()
        self._lines = shows and not sys.stderr.isatty()
        self._bar = tqdm(unit=f" {name}s", dynamic_ncols=True, disable=not shows or self._lines, leave=False)

    def add(self) -> None:
        self._count += 1
        self._bar.update()
        now = time.monotonic()
        if self._lines and now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            rate = self._count / (now - self._begun)
            print(f"{self._count:,} {self._name}s, {rate:,.0f} {self._name}s/s", file=sys.stderr, flush=True)

    def say(self, sentence: str) -> None:
        self._bar.write(sentence, file=sys.stderr)

    def close(self) -> None:
        self._bar.close()


def _read(
    served: ServedModel,
    request: GenerateRequest,
    texts: Iterable[bytes],
    ahead: queue.Queue[Line | BaseException | None],
    stopping: threading.Event,
) -> None:
    """Submit every text and put it in the queue; a reading that fails is put there too."""
    try:
        for number, text in enumerate(texts, start=1):
            line = Line(number)
            try:
                line.task = _plan(request, served, _understood(text), number)
                _submit(served.engine, line, stopping)
            except ServiceError as error:
                line.finish(error)
            ahead.put(line)
            if stopping.is_set():
                return
        ahead.put(None)
    except BaseException as error:  # the main thread raises it
        ahead.put(error)


def _understood(text: bytes) -> str:
    if len(text) >= LONGEST_LINE - 1:
        raise InvalidFieldError(f"inputs has {LONGEST_LINE - 1:,} bytes or more; that is no text for this model.")
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidFieldError(f"inputs is not UTF-8: its byte {error.start + 1} cannot be read.") from None


def _submit(engine: EngineInterface, line: Line, stopping: threading.Event) -> None:
    assert line.task is not None
    while True:
        try:
            engine.submit([line.task], line.on_event)
            return
        except QueueFullError:
            if stopping.wait(RETRY_SECONDS):
                raise


def _next(ahead: queue.Queue[Line | BaseException | None], out: IO[bytes]) -> Line | None:
    """The next line with its answer; what is written already is sent before waiting."""
    if ahead.empty():
        out.flush()
    line = ahead.get()
    if isinstance(line, BaseException):
        raise line
    if line is not None and not line.done.is_set():
        out.flush()
        line.done.wait()
    return line


def _plan(request: GenerateRequest, served: ServedModel, text: str, number: int) -> Generate:
    """The task of one text; its seed is the one that it would have in a request with all of them."""
    seed = None if request.seed is None else input_seed(request.seed, number - 1)
    one = request.model_copy(update={"inputs": [text], "seed": seed})
    return plan_generate(one, served, LIMITS)[0]


def _window(served: ServedModel, request: GenerateRequest) -> int:
    """Texts read ahead: as many as the queue holds, by their number and by the most tokens that each may take."""
    rows = max(request.beam_size, request.num_hypotheses)
    token_budget = served.description.max_source_length + 1 + rows * served.max_target_length
    fitting = served.description.max_queue_tokens // token_budget
    return max(1, min(LINES_AHEAD, served.description.max_queue_requests, fitting))


def _text_line(served: ServedModel, line: Line) -> bytes:
    """The hypotheses, tab-separated; a text's own line breaks and tabs become spaces, so that lines stay in step."""
    if not isinstance(line.answer, Generated):
        return b"\n"
    texts = [served.engine.target_tokenizer.decode(hypothesis.ids) for hypothesis in line.answer.hypotheses]
    return ("\t".join(re.sub(r"[\r\n\t]", " ", text) for text in texts) + "\n").encode()


def _json_line(served: ServedModel, request: GenerateRequest, line: Line) -> bytes:
    if isinstance(line.answer, Generated) and line.task is not None:
        return encode(output_content(served, line.answer, request.logprobs)) + b"\n"
    assert isinstance(line.answer, Exception)
    kind = getattr(line.answer, "type", ServiceError.type)
    return encode({"error": {"type": kind, "message": _complaint(line.answer)}}) + b"\n"


def _complaint(error: Exception) -> str:
    message = error.message if isinstance(error, ServiceError) else f"{type(error).__name__}: {error}"
    return message.removeprefix("inputs ")


def _with_flags(message: str) -> str:
    """Fields as their flags, where a name can be nothing but a field's."""
    for name in GenerateRequest.model_fields:
        if "_" in name:
            message = re.sub(rf"\b{name}\b", flag(name), message)
    first = message.split(" ", 1)[0]
    return f"--{message}" if first in GenerateRequest.model_fields else message


def _value(text: Any) -> Any:
    """A number or null where the text is one."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def _standard_input() -> IO[bytes]:
    if sys.stdin.isatty():
        print("reading lines from the terminal; Ctrl-D ends.", file=sys.stderr)
    # Not sys.stdin itself: the interpreter closes that at its end, and would wait for the reader to let go of it.
    return open(sys.stdin.fileno(), "rb", closefd=False)
