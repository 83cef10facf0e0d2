"""The documentation names only what exists: targets of make, commands, files and headings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

import attendant
from bench.install_sizes import table

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md")),
        *(ROOT / name / "README.md" for name in ("model/default", "examples")),
        *(ROOT / "docs").rglob("*.md"),
    ]
)
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8").replace("$(DATA)", "runs/data")
TARGETS = set(re.findall(r"^([a-z][a-z./-]*):", MAKEFILE, re.MULTILINE))

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def code_of(page: Path) -> str:
    """What stands in backticks or is indented."""
    text = page.read_text(encoding="utf-8")
    return "\n".join([*re.findall(r"^    (.*)", text, re.MULTILINE), *re.findall(r"`([^`\n]+)`", text)])


def targets_of(page: Path) -> set[str]:
    return set(re.findall(r"(?:^|[;&] *|[A-Z]+=\S+ )make ([a-z][a-z./-]+)", code_of(page), re.MULTILINE))


def commands_of(page: Path) -> set[str]:
    return set(re.findall(r"^attendant ([a-z]+)(?= |$)", code_of(page), re.MULTILINE))


def links_of(page: Path) -> list[str]:
    """Those that lead to other pages or headings."""
    found = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    return [target for target in found if "://" not in target]


@pytest.mark.parametrize("named", [targets_of, commands_of, links_of])
def test_the_readme_has_some_of_what_is_looked_for(named: Callable[[Path], Collection[str]]) -> None:
    assert named(ROOT / "README.md")


@every_page
def test_targets_of_make_exist(page: Path) -> None:
    assert targets_of(page) <= TARGETS


@every_page
def test_commands_exist(page: Path) -> None:
    assert commands_of(page) <= set(attendant.COMMANDS)


def heading_ids(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in links_of(page):
        file, _, heading = target.partition("#")
        found = (page.parent / file) if file else page
        assert found.exists(), target
        assert not heading or heading in heading_ids(found), target


def test_the_readme_has_the_sizes_that_were_measured() -> None:
    measured = json.loads((ROOT / "bench" / "results" / "install_sizes.json").read_text(encoding="utf-8"))
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert table(measured["rows"]) in page
    assert measured["date"] in page
