"""The table of docs/export.md, from the one in export/signature.py.

python -m export.describe        rewrites it
"""

from __future__ import annotations

import re
from pathlib import Path

from export.signature import GRAPHS, KEPT, REQUIRED, Value

PAGE = Path(__file__).parent.parent / "docs" / "export.md"
BETWEEN = re.compile(r"(<!-- table: begin[^\n]*-->\n).*?(<!-- table: end -->)", re.DOTALL)


def table() -> str:
    lines = ["| graph | | name | type | axes | what it is |", "|---|---|---|---|---|---|"]
    for graph in REQUIRED:  # a fast graph has those of its plain one, and some more outputs
        inputs, outputs = GRAPHS[graph]
        lines += [_row(graph, "in", value) for value in inputs] + [_row(graph, "out", value) for value in outputs]
    lines += [_row("fast_step", "out", value) for value in KEPT]
    return "\n".join(lines) + "\n"


def _row(graph: str, side: str, value: Value) -> str:
    return f"| {graph} | {side} | `{value.name}` | {value.kind} | {', '.join(value.axes)} | {value.meaning} |"


def page() -> str:
    """The page with its table as it should be."""
    return BETWEEN.sub(lambda match: match[1] + table() + match[2], PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
