"""Tables, numbers and the line that says how a figure was taken, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(map(number, row)) + " |" for row in rows)])


def number(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def taken(record: dict[str, Any]) -> str:
    """How a record was taken."""
    machine, versions = record["machine"], record["versions"]
    flags = f" ({' '.join(machine['flags'])})" if "flags" in machine else ""
    threads = f", {record['threads']} threads" if record.get("threads") else ""
    names = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"`{record['command']}`, {record['date']}: {machine['cores']} cores of an {machine['cpu']}{flags}, "
        f"{machine['memory_gib']} GiB{threads}, {machine['system']}, Python {machine['python']}; {names}."
    )


def verdict(value: float, goal: float | None, most: bool = False) -> str:
    """Whether a goal is reached: at least, or at most, that value."""
    if goal is None:
        return ""
    return "yes" if (value <= goal if most else value >= goal) else "no"
