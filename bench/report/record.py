"""Results as JSON files, with all that a reader needs to take them again."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attendant.common.version import VERSION
from bench.report.machine import machine_facts

RESULTS = Path(__file__).parents[1] / "results"
RESULTS_HERE = RESULTS / machine_facts()["kind"]  # of this kind of processor; figures of two never mix
PACKAGES = ("onnxruntime", "ctranslate2", "transformers", "optimum-onnx", "numpy", "fastapi", "uvicorn")


def facts(module: str) -> dict[str, Any]:
    """The command, the day, the versions and the machine of a measurement."""
    return {
        "command": shlex.join(["python", "-m", module, *_without_parts(sys.argv[1:])]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": versions(),
        "machine": machine_facts(),
    }


def _without_parts(arguments: list[str]) -> list[str]:
    """Parts are measured one after the other, and all of them with the same other arguments: without `--parts X...`."""
    if "--parts" not in arguments:
        return arguments
    first = arguments.index("--parts")
    rest = arguments[first + 1 :]
    return [*arguments[:first], *rest[next((i for i, each in enumerate(rest) if each.startswith("--")), len(rest)) :]]


def versions() -> dict[str, str]:
    found = {"attendant": VERSION}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def warn_of_few_cores(threads: int) -> None:
    """Threads that share a core wait for each other: such figures say nothing."""
    cores = len(os.sched_getaffinity(0))
    if threads > cores:
        print(
            f"warning: {threads} threads on {cores} core{'s' * (cores > 1)} wait for each other; expect no use of this"
        )


def write_record(path: Path, module: str, rows: list[dict[str, Any]], **more: Any) -> None:
    """Rows of a measurement, and its facts."""
    write_json(path, {**facts(module), **more, "rows": rows})


def merged(path: Path, rows: list[dict[str, Any]], order: Iterable[str]) -> list[dict[str, Any]]:
    """These rows and those of other names that the record has, as far as they are in this order of names, in it."""
    before = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    named = {row["name"]: row for row in [*before, *rows]}
    return [named[name] for name in order if name in named]


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.partial")
    beside.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    beside.replace(path)
