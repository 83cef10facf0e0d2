"""Parquet in and out: the input's columns as they are, with `hypotheses` and `error` beside them. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from attendant.service.bulk.formats import Finish, Source, Writer, only
from attendant.service.bulk.texts import complaint, not_utf8, plan_text, texts_ahead
from attendant.service.engine.tasks import Outcome
from attendant.service.errors import InvalidFieldError
from attendant.service.requests.content import hypothesis_content
from attendant.service.requests.documents import SegmentTask
from attendant.service.requests.schemas import GenerateRequest
from attendant.service.requests.served import ServedModel

ROWS = 1024  # read at once, and in a row group of the output
HYPOTHESES = pyarrow.list_(
    pyarrow.struct(
        [("text", pyarrow.string()), ("score", pyarrow.float64()), ("finish_reason", pyarrow.string())],
    )
)
ADDED = {"hypotheses": HYPOTHESES, "error": pyarrow.string()}


class ParquetUsageError(Exception):
    exit_code = 2


@dataclass(frozen=True)
class Row:
    """A row of a batch that was read."""

    batch: Any
    index: int


Answered = tuple[Row, Any, str | None]  # the row, its hypotheses or None, its error or None


def answered_table(records: Sequence[Answered]) -> Any:
    """The rows of the input in their order, with the columns that are added."""
    table = pyarrow.Table.from_batches([row.batch.slice(row.index, 1) for row, _, _ in records])
    for place, (name, kind) in enumerate(ADDED.items(), start=1):
        table = table.append_column(name, pyarrow.array([record[place] for record in records], kind))
    return table.combine_chunks()


class ParquetSource:
    def __init__(self, path: Path, field: str) -> None:
        self._path = path
        try:
            self._file = pyarrow.parquet.ParquetFile(path)
        except (pyarrow.ArrowInvalid, OSError) as error:  # OSError if the footer is damaged
            raise ParquetUsageError(f"{path} is no Parquet file: {error}; --format names another format.") from None
        schema = self._file.schema_arrow
        self.total: int = self._file.metadata.num_rows
        taken = [name for name in ADDED if name in schema.names]
        if taken:
            raise ParquetUsageError(f"{path} has a column {taken[0]!r}, which the output adds; rename it.")
        if field not in schema.names or not _is_text(schema.field(field).type):
            raise ParquetUsageError(f"{path} has no column {field!r} of texts; --field names another one.")

    def read(self, position: int) -> Iterator[tuple[Row, int]]:
        groups, skipped = self._from(position)
        for batch in self._batches(groups):
            for index in range(min(skipped, batch.num_rows), batch.num_rows):
                yield Row(batch, index), 1
            skipped = max(0, skipped - batch.num_rows)

    def _batches(self, groups: list[int]) -> Iterator[Any]:
        try:
            yield from self._file.iter_batches(ROWS, groups)
        except (pyarrow.ArrowException, OSError) as error:  # OSError also where the content is damaged
            raise ParquetUsageError(f"{self._path} is damaged: {error}; what comes before stays written.") from None

    def _from(self, position: int) -> tuple[list[int], int]:
        """The row groups from the one with this row on, and how many rows of that one to skip."""
        count = self._file.metadata.num_row_groups
        for group in range(count):
            rows = self._file.metadata.row_group(group).num_rows
            if position < rows:
                return list(range(group, count)), position
            position -= rows
        return [], 0


def _is_text(kind: Any) -> bool:
    """Whether a column's type is one of Arrow's string types, plain or dictionary-encoded."""
    types = pyarrow.types
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


class ParquetWriter:
    """Row groups are cut by the rows of the shard alone, so the bytes do not depend on how the input was read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Any = None
        self._rows: list[Answered] = []

    def add(self, record: Answered) -> None:
        self._rows.append(record)
        if len(self._rows) == ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        if self._writer is not None:
            self._writer.close()

    def _flush(self) -> None:
        if not self._rows:
            return
        table = answered_table(self._rows)
        if self._writer is None:
            self._writer = pyarrow.parquet.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table, row_group_size=ROWS)
        self._rows = []


class ParquetFormat:
    suffix = "parquet"

    def __init__(self, served: ServedModel, request: GenerateRequest, field: str) -> None:
        self._served, self._request, self._field = served, request, field
        self.ahead = texts_ahead(request, served)

    def source(self, path: Path) -> Source:
        return ParquetSource(path, self._field)

    def writer(self, path: Path) -> Writer:
        return ParquetWriter(path)

    def plan(self, raw: Row, place: int) -> tuple[Sequence[SegmentTask], Finish]:
        try:
            text = self._text(raw)
        except UnicodeDecodeError as error:
            raise not_utf8(error) from None
        if text is None:
            raise InvalidFieldError(f"has null in its column {self._field!r}; give a text.")

        def finish(outcomes: Sequence[Outcome]) -> Answered:
            hypotheses = only(plan.in_order(outcomes)).hypotheses
            contents = [hypothesis_content(self._served, each, False) for each in hypotheses]
            return raw, [{name: each[name] for name in ("text", "score", "finish_reason")} for each in contents], None

        plan = plan_text(self._request, self._served, text, place)
        return plan.tasks, finish

    def refuse(self, raw: Row, place: int, error: Exception) -> Answered:  # noqa: ARG002
        return raw, None, complaint(error)

    def shown(self, raw: Row) -> str | None:
        try:
            return self._text(raw)
        except UnicodeDecodeError as error:
            return error.object.decode("utf-8", "backslashreplace")

    def _text(self, raw: Row) -> str | None:
        """UnicodeDecodeError if its bytes are not UTF-8, which pyarrow does not check when it reads them."""
        text: str | None = raw.batch.column(self._field)[raw.index].as_py()
        return text
