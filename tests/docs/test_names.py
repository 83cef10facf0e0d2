"""Flags, paths, fields and metrics that the documentation names are those of the code."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import attendant
from attendant.export.manifest import FORMAT
from attendant.service.http.app import create_app
from attendant.service.http.routes import ENDPOINTS, MODEL_ENDPOINTS
from attendant.service.settings import Settings
from attendant.service.watch.metrics import Metrics
from tests.support.markdown import code_blocks

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md", "model/default/README.md")),
    *(ROOT / "examples").glob("*.*"),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SUFFIXES = {"counter": ["_total"], "gauge": [""], "info": ["_info"], "histogram": ["", "_bucket", "_sum", "_count"]}

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def code_of(page: Path) -> list[str]:
    """Lines of blocks with their continuations, and what stands in backticks."""
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(re.sub(r" *\\\n *", " ", block.text) for block in code_blocks(text))
    return [*blocks.splitlines(), *(" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", text))]


@cache
def flags_of(command: str) -> frozenset[str]:
    """Those that the command's help lists."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        attendant.main([command, "--help"])
    return frozenset(re.findall(r"--[a-z][a-z0-9-]*", printed.getvalue()))


@cache
def document() -> dict[str, Any]:
    return create_app(Settings()).openapi()


def flags_named(page: Path) -> list[tuple[str, set[str]]]:
    """A command and flags of it, for each line that has some."""
    lines = [re.match(r"(?:torchrun .*)?attendant ([a-z]+) (.*)", line.partition("  #")[0]) for line in code_of(page)]
    named = [(line[1], set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", line[2]))) for line in lines if line]
    return [(command, flags) for command, flags in named if flags]


def paths_named(page: Path) -> list[str]:
    return re.findall(r"(?<![\w.])/v[12](?:/[A-Za-z0-9_{}-]+)+", page.read_text(encoding="utf-8"))


def bodies_named(page: Path) -> list[dict[str, Any]]:
    """JSON that a request may have; where something is left out and written as ..., it is none."""
    found = []
    for body in [body for line in code_of(page) for body in re.findall(r"^\{.*\}$|(?<=-d ')\{.*\}(?=')", line)]:
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(body)
            if {"source", "inputs", "messages", "prompt"} & value.keys():
                found.append(value)
    return found


def metrics_named(page: Path) -> set[str]:
    return set(re.findall(r"\battendant_[a-z_]+\b", page.read_text(encoding="utf-8"))) - {"attendant_version"}


@pytest.mark.parametrize("named", [flags_named, paths_named, bodies_named, metrics_named])
def test_several_pages_have_some_of_what_is_looked_for(named: Callable[[Path], Collection[object]]) -> None:
    assert sum(bool(named(page)) for page in PAGES) >= 2


@every_page
def test_flags_are_those_of_the_command(page: Path) -> None:
    for command, flags in flags_named(page):
        assert flags <= flags_of(command), command


@every_page
def test_paths_are_those_of_the_service(page: Path) -> None:
    known = [re.sub(r"\{\w+\}", r"[^/]+", path) for path in document()["paths"]]
    for path in paths_named(page):
        assert any(re.fullmatch(form, path) for form in known), path


@every_page
def test_fields_of_bodies_are_those_of_the_api(page: Path) -> None:
    schemas = document()["components"]["schemas"].values()
    known = {name for schema in schemas for name in schema.get("properties", {})}
    for body in bodies_named(page):
        assert body.keys() <= known, body


@every_page
def test_metrics_are_those_of_the_service(page: Path) -> None:
    registry = CollectorRegistry()
    Metrics(registry, ENDPOINTS, MODEL_ENDPOINTS)
    known = {metric.name + suffix for metric in registry.collect() for suffix in SUFFIXES[metric.type]}
    assert metrics_named(page) <= known


@pytest.mark.parametrize(
    ("page", "words"), [("docs/export.md", "whole number, {} in"), ("docs/stability.md", "reads {}, whose")]
)
def test_the_format_of_a_bundle_is_the_one_that_is_written(page: str, words: str) -> None:
    assert words.format(FORMAT) in (ROOT / page).read_text(encoding="utf-8")
