"""The programs of docs/tutorial.md print what it says, and the lines it quotes are the code's."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from tests.support.markdown import Block, code_blocks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = code_blocks(PAGE)
PROGRAMS = [i for i, block in enumerate(BLOCKS) if block.text.startswith(("from ", "import "))]


def text_before(block: Block) -> str:
    """The paragraph above a block."""
    return PAGE.split("\n\n" + "    " + block.text.splitlines()[0])[0].rpartition("\n\n")[2]


def quoted() -> list[tuple[str, Block]]:
    """(file, block) where the paragraph above the block ends by naming a file of the model."""
    found = []
    for block in BLOCKS:
        above = text_before(block).replace("\n", " ")
        if named := re.search(r"\(\.\./(model/[\w/]+\.py)\) (?:has:?|gives it more:)$", above):
            found.append((named[1], block))
    return found


def test_the_tutorial_has_programs_and_quotations() -> None:
    assert len(PROGRAMS) >= 15
    assert len(quoted()) >= 11


@pytest.mark.parametrize("index", PROGRAMS, ids=lambda index: f"line{BLOCKS[index].line}")
def test_a_program_prints_what_stands_under_it(index: int) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(BLOCKS[index].text, "docs/tutorial.md", "exec"), {})
    assert text_before(BLOCKS[index + 1]) == "prints"
    assert printed.getvalue().strip("\n") == BLOCKS[index + 1].text


@pytest.mark.parametrize(("file", "block"), quoted(), ids=lambda value: getattr(value, "line", value))
def test_a_quoted_line_is_in_the_code(file: str, block: Block) -> None:
    code = [line.strip() for line in (ROOT / file).read_text(encoding="utf-8").splitlines()]
    lines = [line.strip() for line in block.text.splitlines()]
    assert lines in [code[i : i + len(lines)] for i in range(len(code))]
