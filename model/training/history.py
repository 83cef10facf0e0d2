"""The history of a run: JSON lines, one per logged step, per validation, and per change of options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attendant.model.files import write_text


class History:
    def __init__(self, path: Path, writes: bool = True) -> None:
        self._path, self._writes = path, writes

    def add(self, **values: Any) -> None:
        if self._writes:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")

    def add_options(self, step: int, options: dict[str, Any]) -> None:
        """Record the options in force from a step on, if any of them changed."""
        before = phases(read_history(self._path)) if self._path.exists() else []
        if not before or any(before[-1]["options"].get(name, value) != value for name, value in options.items()):
            self.add(kind="options", step=step, options=options)

    def cut_after(self, step: int) -> None:
        """Forget what came after a step, before training goes on from it."""
        if self._writes and self._path.exists():
            kept = [json.dumps(entry) + "\n" for entry in read_history(self._path) if entry["step"] <= step]
            write_text(self._path, "".join(kept))


def phases(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries that record options: the first at the start, one more for each change."""
    return [entry for entry in history if entry["kind"] == "options"]


def read_history(path: Path) -> list[dict[str, Any]]:
    """The entries of a history; a last line cut short by a kill is ignored."""
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:
            break
    return entries
