r"""Batch inference on a Ray cluster: Ray Data with an engine in each actor. Needs attendant-transformer[ray].

    python -m attendant.service.ray.bulk --input IN.parquet --output OUT --actors 8 --threads 2 \
      --options '{"beam_size": 4}'

Paths are whatever Ray Data reads: files, directories, s3://. A row keeps its columns and gets `hypotheses` or
`error`, as from `attendant generate --input IN.parquet`. No other module imports this one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray.data

from attendant.service.bulk.parquet import ADDED, Answered, ParquetFormat, Row, answered_table
from attendant.service.bulk.pipeline import answered
from attendant.service.commands.generate import load_engine
from attendant.service.errors import InvalidFieldError, ServiceError
from attendant.service.requests.schemas import GenerateRequest
from attendant.service.requests.served import ServedModel
from attendant.service.requests.validation import validate
from attendant.service.settings import Settings, SettingsError

BATCH_ROWS = 2048  # given to an engine at once: many, so that its decoding batches stay full
READERS = {".jsonl": "read_json", ".ndjson": "read_json"}  # else read_parquet


class Engine:
    """One in each actor; called with a table of rows."""

    def __init__(self, settings: Settings, request: GenerateRequest, field: str) -> None:
        self._served = ServedModel(load_engine(settings))
        self._form = ParquetFormat(self._served, request, field)

    def __call__(self, table: Any) -> Any:
        rows = ((Row(batch, index), 1) for batch in table.to_batches() for index in range(batch.num_rows))
        form = self._form
        records: list[Answered] = []
        for item in answered(self._served.engine, rows, lambda row: form.plan(row, 0), form.ahead):
            try:
                if item.error is not None:
                    raise item.error
                records.append(item.work(item.outcomes))
            except Exception as error:
                records.append(form.refuse(item.record, 0, error))
        return answered_table(records)


def generate(
    dataset: Any,
    settings: Settings,
    options: dict[str, Any],
    *,
    field: str = "text",
    actors: int = 1,
    batch_rows: int = BATCH_ROWS,
) -> Any:
    """A dataset with the answers; each actor reserves as many CPUs as its engine has threads."""
    if not isinstance(options, dict):
        raise InvalidFieldError("options is a JSON object, as in '{\"beam_size\": 4}'.")
    request = validate(GenerateRequest, {**options, "inputs": "-"})
    if request.temperature is not None:
        raise InvalidFieldError("temperature: samples are drawn by a row's number, and rows of Ray Data have none.")
    schema = dataset.schema()  # None if the dataset has no rows
    names = [] if schema is None else schema.names
    if field not in names:
        raise InvalidFieldError(f"there is no column {field!r}; there are {', '.join(names) or 'none'}.")
    if taken := [name for name in ADDED if name in names]:
        raise InvalidFieldError(f"the input has a column {taken[0]!r}, which the output adds; rename it.")
    return dataset.repartition(target_num_rows_per_block=batch_rows).map_batches(
        Engine,
        fn_constructor_args=(settings, request, field),
        batch_format="pyarrow",
        batch_size=batch_rows,
        num_cpus=settings.threads,
        compute=ray.data.ActorPoolStrategy(size=actors),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m attendant.service.ray.bulk", description="Answers for a table of texts."
    )
    parser.add_argument("--input", nargs="+", required=True, help="Parquet, or JSON lines by the suffix .jsonl")
    parser.add_argument("--output", required=True, help="a directory of Parquet files")
    parser.add_argument("--field", default="text", help="the column of the texts (default: text)")
    parser.add_argument("--bundle", type=Path, help="the same directory on every machine (default: the embedded model)")
    parser.add_argument("--actors", type=int, default=1, help="engines (default: 1)")
    parser.add_argument("--threads", type=int, default=1, help="of each engine, and CPUs that it reserves (default: 1)")
    parser.add_argument("--batch-rows", type=int, default=BATCH_ROWS, help=f"given to an engine at once ({BATCH_ROWS})")
    parser.add_argument("--precision", default="auto", help="the same on every machine, for the same bits")
    parser.add_argument("--options", type=json.loads, default={}, help="fields of POST /v1/generate, as JSON")
    given = parser.parse_args(arguments)
    try:
        settings = Settings(bundle=given.bundle, threads=given.threads, precision=given.precision)
        read = getattr(ray.data, READERS.get(Path(given.input[0]).suffix, "read_parquet"))
        named = {"field": given.field, "actors": given.actors, "batch_rows": given.batch_rows}
        dataset = generate(read(given.input), settings, given.options, **named)
    except (SettingsError, ServiceError, FileNotFoundError) as error:
        print(f"ray_bulk: {error}", file=sys.stderr)
        return 2
    reserved, there = given.actors * given.threads, ray.cluster_resources().get("CPU", 0)
    if reserved >= there:
        print(f"{reserved} of {there:g} CPUs are reserved; reading and writing need one too.", file=sys.stderr)
    dataset.write_parquet(given.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
