"""Formats of bulk input and output. A format reads records, plans each, and writes its answer or its error.

text     in: a text per line; out: hypotheses, tab-separated, or with --json an object as in POST /v1/generate
tsv      the same, with the text in the first column
jsonl    in: an object per line, with the text in one field; out: the same object with `hypotheses` or `error`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from attendant.service.bulk.texts import (
    complaint,
    decode_text,
    error_type,
    measured_lines,
    plan_text,
    text_line,
    texts_ahead,
)
from attendant.service.engine.tasks import Generated, Outcome
from attendant.service.errors import InvalidFieldError
from attendant.service.requests.content import encode, output_content
from attendant.service.requests.documents import Plan, SegmentTask
from attendant.service.requests.schemas import GenerateRequest
from attendant.service.requests.served import ServedModel

Finish = Callable[[Sequence[Outcome]], Any]  # from outcomes to what is written; it may raise


class Source(Protocol):
    """One input file, of `total` bytes or rows."""

    total: int

    def read(self, position: int) -> Iterator[tuple[Any, int]]:
        """Raw records from a position on, each with the bytes or rows that it takes."""


class Writer(Protocol):
    """One shard that is being written."""

    def add(self, record: Any) -> None: ...
    def close(self) -> None: ...


class Format(Protocol):
    suffix: str  # of the shards

    @property
    def ahead(self) -> int:
        """Records that are read ahead."""

    def source(self, path: Path) -> Source: ...
    def writer(self, path: Path) -> Writer: ...

    def plan(self, raw: Any, place: int) -> tuple[Sequence[SegmentTask], Finish]:
        """The tasks of the record at this place (from 0, over all files); ServiceError says why there are none."""

    def refuse(self, raw: Any, place: int, error: Exception) -> Any:
        """What is written for a record that cannot be answered."""

    def shown(self, raw: Any) -> Any:
        """The record, for the file of those that were set aside."""


@dataclass
class LineSource:
    path: Path
    total: int = 0

    def __post_init__(self) -> None:
        self.total = self.path.stat().st_size

    def read(self, position: int) -> Iterator[tuple[bytes, int]]:
        with self.path.open("rb") as stream:
            stream.seek(position)
            yield from measured_lines(stream)


class LineWriter:
    def __init__(self, path: Path) -> None:
        self._stream = path.open("wb")

    def add(self, record: bytes) -> None:
        self._stream.write(record)

    def close(self) -> None:
        self._stream.close()


class TextFormat:
    def __init__(self, served: ServedModel, request: GenerateRequest, as_json: bool) -> None:
        self._served, self._request, self._as_json = served, request, as_json
        self.suffix = "jsonl" if as_json else "txt"
        self.ahead = texts_ahead(request, served)

    def source(self, path: Path) -> Source:
        return LineSource(path)

    def writer(self, path: Path) -> Writer:
        return LineWriter(path)

    def text(self, raw: bytes) -> str:
        return decode_text(raw)

    def plan(self, raw: bytes, place: int) -> tuple[Sequence[SegmentTask], Finish]:
        plan = plan_text(self._request, self._served, self.text(raw), place)

        def finish(outcomes: Sequence[Outcome]) -> bytes:
            answer = only(plan.in_order(outcomes))
            if not self._as_json:
                return text_line(self._served, answer)
            return encode(self._content(plan, answer)) + b"\n"

        return plan.tasks, finish

    def _content(self, plan: Plan, answer: Generated) -> dict[str, Any]:
        content = output_content(self._served, answer, self._request.logprobs)
        return content | ({"detected_language": asdict(plan.detected[0])} if plan.detected else {})

    def refuse(self, raw: bytes, place: int, error: Exception) -> bytes:  # noqa: ARG002
        return encode({"error": described(error)}) + b"\n" if self._as_json else b"\n"

    def shown(self, raw: bytes) -> str:
        return raw.decode("utf-8", "backslashreplace")


class TsvFormat(TextFormat):
    def text(self, raw: bytes) -> str:
        return decode_text(raw).split("\t", 1)[0]


class JsonFormat(TextFormat):
    """Other fields of an object are passed on, except `hypotheses` and `error` of an earlier run."""

    def __init__(self, served: ServedModel, request: GenerateRequest, field: str) -> None:
        super().__init__(served, request, as_json=True)
        self._field = field

    def plan(self, raw: bytes, place: int) -> tuple[Sequence[SegmentTask], Finish]:
        found = read_object(raw)
        text = found.get(self._field)
        if not isinstance(text, str):
            raise InvalidFieldError(f"has no text in its field {self._field!r}; --field names another one.")

        plan = plan_text(self._request, self._served, text, place)

        def finish(outcomes: Sequence[Outcome]) -> bytes:
            content = self._content(plan, only(plan.in_order(outcomes)))
            return encode({**_without_results(found), **content}) + b"\n"

        return plan.tasks, finish

    def refuse(self, raw: bytes, place: int, error: Exception) -> bytes:  # noqa: ARG002
        try:
            found = read_object(raw)
        except InvalidFieldError:
            found = {}
        return encode({**_without_results(found), "error": described(error)}) + b"\n"


def _without_results(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in ("hypotheses", "error")}


def only(outcomes: Sequence[Outcome]) -> Generated:
    """The one result; a failure is raised."""
    (outcome,) = outcomes
    if isinstance(outcome, Exception):
        raise outcome
    return cast(Generated, outcome)


def described(error: Exception) -> dict[str, str]:
    return {"type": error_type(error), "message": complaint(error)}


def read_object(raw: bytes) -> dict[str, Any]:
    """A line of JSON that is an object, with valid Unicode in it."""
    text = decode_text(raw)
    try:
        found = json.loads(text)
        encode({"line": found})
    except RecursionError:
        raise InvalidFieldError("is JSON that is nested too deeply.") from None
    except json.JSONDecodeError as error:
        raise InvalidFieldError(f"is not JSON: {error.msg}, at character {error.pos + 1}.") from None
    except ValueError as error:  # a lone surrogate, or a number of too many digits
        raise InvalidFieldError(f"is JSON that cannot be written again: {error}.") from None
    if not isinstance(found, dict):
        raise InvalidFieldError("is no JSON object.")
    return found
