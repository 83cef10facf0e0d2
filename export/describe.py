"""The table of docs/export.md, from the one in export/signature.py.

python -m attendant.export.describe        rewrites it
"""

from __future__ import annotations

import re
from pathlib import Path

from attendant.export.signature import GRAPHS, Value

PAGE = Path(__file__).parent.parent / "docs" / "export.md"
BETWEEN = re.compile(r"(<!-- table: begin[^\n]*-->\n).*?(<!-- table: end -->)", re.DOTALL)


def table() -> str:
    lines = ["| graph | | name | type | axes | what it is |", "|---|---|---|---|---|---|"]
    for graph, (inputs, outputs) in GRAPHS.items():
        lines += [_row(graph, "in", value) for value in inputs] + [_row(graph, "out", value) for value in outputs]
    return "\n".join(lines) + "\n"


def _row(graph: str, side: str, value: Value) -> str:
    kind = f"{value.kind}, in int8 only" if value.quantized else value.kind
    return f"| {graph} | {side} | `{value.name}` | {kind} | {', '.join(value.axes)} | {value.meaning} |"


def page() -> str:
    """The page with its table as it should be."""
    return BETWEEN.sub(lambda match: match[1] + table() + match[2], PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
