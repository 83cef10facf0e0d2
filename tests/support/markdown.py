"""Code blocks of the documentation, indented or fenced."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """Code without its indentation, and the line of the page at which it begins."""

    line: int
    text: str


def code_blocks(text: str) -> list[Block]:
    """In order. Blank lines inside an indented block belong to it; an indented line after text is no code."""
    found: list[tuple[int, list[str]]] = []
    fenced = inside = False
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
            if fenced:
                found.append((number + 1, []))
            inside = False
        elif fenced:
            found[-1][1].append(line)
        elif line.startswith("    ") and (inside or not before.strip()):
            if not inside:
                found.append((number, []))
            inside = True
            found[-1][1].append(line)
        elif not line.strip() and inside:
            found[-1][1].append("")
        else:
            inside = False
        before = line
    return [Block(line, textwrap.dedent("\n".join(lines)).strip("\n")) for line, lines in found]
