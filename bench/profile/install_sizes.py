"""What each extra takes on the disk: installed in an environment of its own, without pip and compiled files.

    python -m bench.profile.install_sizes

It writes bench/results/install_sizes.json and prints the table of docs/install.md.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from attendant.common.version import DISTRIBUTION
from bench.report.record import RESULTS, write_record

ROOT = Path(__file__).parents[2]
PACKAGES = ("attendant", "export", "hub", "kernels", "model", "service")
BUILT_FROM = (*PACKAGES, "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py")
EXTRAS = {
    "": "serving, `attendant generate`, the Python API",
    "train": "training, evaluation, import, export, plots; with torch",
    "train,dev": "all that `make test` needs (`make install-all`)",
    "bench": "CTranslate2, to compare with",
    "baseline": "Phonetisaurus, to compare with",
}

Row = dict[str, Any]


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "source"
        copy_source(source)
        rows = []
        for extras in EXTRAS:
            print(f"installing {_name(extras)}", file=sys.stderr, flush=True)
            rows.append(measure(source, extras, Path(directory) / "environment"))
    write_record(RESULTS / "install_sizes.json", "bench.profile.install_sizes", rows)
    print(table(rows))
    return 0


def copy_source(out: Path) -> None:
    """What a distribution is built from; building where the sources are would leave files behind."""
    out.mkdir()
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, out / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(ROOT / name, out)


def measure(source: Path, extras: str, directory: Path) -> Row:
    """Bytes and packages of an environment that has this project with these extras."""
    venv.create(directory, clear=True, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(directory / "bin" / "python"), "install", "--quiet"]
    what = f"{source}[{extras}]" if extras else str(source)
    subprocess.run([*pip, "--no-compile", "--disable-pip-version-check", what], check=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    found = {package.name: package.version for package in importlib.metadata.distributions(path=[str(packages)])}
    return {
        "extras": extras,
        "bytes": sum(path.stat().st_size for path in directory.rglob("*") if path.is_file() and not path.is_symlink()),
        "packages": len(found),
        "torch": found.get("torch"),
    }


def table(rows: list[Row]) -> str:
    """As docs/install.md has it."""
    lines = ["| what is installed | packages | size | what for |", "|---|---|---|---|"]
    for row in rows:
        size = row["bytes"]
        shown = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
        lines.append(f"| `{_name(row['extras'])}` | {row['packages']} | {shown} | {EXTRAS[row['extras']]} |")
    return "\n".join(lines)


def _name(extras: str) -> str:
    return f"{DISTRIBUTION}[{extras}]" if extras else DISTRIBUTION


if __name__ == "__main__":
    sys.exit(main())
