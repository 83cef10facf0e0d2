"""The documentation names only what exists: targets of make, commands, files and headings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

import attendant
from bench.profile.install_sizes import table

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md")),
        *(ROOT / name / "README.md" for name in ("model/default", "examples")),
        *(ROOT / "docs").rglob("*.md"),
    ]
)
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8").replace("$(DATA)", "runs/data")
FOLDERS = "attendant|bench|deploy|docs|examples|export|model|service|tests"
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
    assert commands_of(page) <= set(attendant.cli.COMMANDS)


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


def files_named(text: str) -> set[str]:
    """Files and folders of the repository in backticks, by their path from its root, and every `.py`."""
    codes = re.findall(r"`([^`\s]+)`", text)
    return {code for code in codes if re.fullmatch(rf"(?:{FOLDERS})/[\w./-]+|[\w./-]+\.py", code)}


def modules_named(text: str) -> set[str]:
    package = r"(?<![\w./-])(?:bench|attendant\.(?:model|export|service|common))"
    return set(re.findall(package + r"(?:\.(?!json\b)[a-z]\w*)+", text))


def file_exists(name: str, page: Path) -> bool:
    return (ROOT / name).exists() or ("/" not in name and (page.parent / name).exists())


def module_exists(name: str) -> bool:
    path = ROOT / name.removeprefix("attendant.").replace(".", "/")
    common = ROOT / name.replace(".", "/")
    return any(found.is_dir() or found.with_suffix(".py").is_file() for found in (path, common))


@every_page
def test_files_and_modules_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [name for name in sorted(files_named(text)) if not file_exists(name, page)] == []
    assert [name for name in sorted(modules_named(text)) if not module_exists(name)] == []


def test_a_file_or_module_that_has_moved_is_noticed() -> None:
    old = "`service/engine/lane.py` and `rows.py`, by `python -m bench.quick` and `attendant.service.ray_serve:build`"
    assert not any(file_exists(name, ROOT / "docs" / "page.md") for name in files_named(old))
    assert files_named(old) == {"service/engine/lane.py", "rows.py"}
    assert modules_named(old) == {"bench.quick", "attendant.service.ray_serve"}
    assert not any(module_exists(name) for name in modules_named(old))


def test_the_installation_has_the_sizes_that_were_measured() -> None:
    measured = json.loads((ROOT / "bench" / "results" / "install_sizes.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert table(measured["rows"]) in page
    assert measured["date"] in page
