"""README.zh-CN.md has the commands, programs, links and figures of README.md."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.markdown import code_blocks

ROOT = Path(__file__).parents[2]
ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")


def difference(english: str, chinese: str) -> str:
    """The first block that is not the same in both pages, or nothing."""
    ours, theirs = code_blocks(english), code_blocks(chinese)
    for one, other in zip(ours, theirs, strict=False):
        if one.text != other.text:
            return f"README.md line {one.line}:\n{one.text}\n\nREADME.zh-CN.md line {other.line}:\n{other.text}"
    if len(ours) > len(theirs):
        missing = ours[len(theirs)]
        return f"README.zh-CN.md ends before README.md line {missing.line}:\n{missing.text}"
    if len(ours) < len(theirs):
        extra = theirs[len(ours)]
        return f"README.md has no block for README.zh-CN.md line {extra.line}:\n{extra.text}"
    return ""


def commands_in_tables(page: str) -> list[str]:
    """The first column of every row that has code in it."""
    return re.findall(r"^\| (`[^\n]*?`)(?=[ ,、]|$)", page, re.MULTILINE)


def links(page: str) -> set[str]:
    return set(re.findall(r"\]\(([^)\s]+)\)", page)) - {"README.md", "README.zh-CN.md"}


def figures(page: str) -> set[str]:
    """Numbers with a decimal point, and dates."""
    return set(re.findall(r"\d+\.\d+(?:\.\d+)*|\d{4}-\d\d-\d\d", page))


def test_the_code_blocks_are_the_same() -> None:
    assert len(code_blocks(ENGLISH)) >= 6
    assert difference(ENGLISH, CHINESE) == ""


def test_a_changed_command_is_named() -> None:
    changed = CHINESE.replace("attendant generate hello world\n", "attendant generate hello\n", 1)
    assert "attendant generate hello world\n\nREADME.zh-CN.md line" in difference(ENGLISH, changed)


def test_a_missing_block_is_named() -> None:
    last = ENGLISH + "\nMore:\n\n    attendant info\n"
    assert difference(last, CHINESE).endswith("attendant info")


def test_the_tables_name_the_same_commands_and_options() -> None:
    assert commands_in_tables(ENGLISH) == commands_in_tables(CHINESE)


def test_sections_links_and_figures_are_the_same() -> None:
    assert ENGLISH.count("\n## ") == CHINESE.count("\n## ")
    assert links(ENGLISH) == links(CHINESE)
    assert figures(ENGLISH) == figures(CHINESE)
