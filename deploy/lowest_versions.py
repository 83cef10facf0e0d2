"""Prints the lowest versions of the runtime dependencies that pyproject.toml admits, as constraints for pip."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
LOWEST = re.compile(r"(?P<name>[\w.-]+)(\[[\w,]+\])?>=(?P<version>[\w.]+)(,[^;]*)?(?P<marker>\s*;.*)?")


def lowest(dependencies: list[str]) -> list[str]:
    """`name>=version` as `name==version`, with its marker; ValueError where a dependency has no lower bound."""
    found = []
    for dependency in dependencies:
        match = LOWEST.fullmatch(dependency)
        if match is None:
            raise ValueError(f"{dependency!r} has no lower bound; pyproject.toml gives one as name>=version.")
        found.append(f"{match['name']}=={match['version']}{match['marker'] or ''}")
    return found


if __name__ == "__main__":
    print("\n".join(lowest(tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"])))
