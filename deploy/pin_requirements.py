"""deploy/requirements.txt with the hashes of the wheels that the image installs, of both of its platforms.

    python -m deploy.pin_requirements

Versions stay as they are. pip is asked, without installing anything, which files it would take for them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

FILE = Path(__file__).with_name("requirements.txt")
PYTHON = "3.11"  # that of the Dockerfile
MACHINES = ("x86_64", "aarch64")
GLIBC = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")


def main() -> None:
    text = FILE.read_text(encoding="utf-8")
    comment = [line for line in text.splitlines() if line.startswith("#")]
    pins = sorted(versions(text).items(), key=lambda pin: pin[0].lower())
    hashes: dict[str, set[str]] = {name: set() for name, _ in pins}
    for machine in MACHINES:
        for name, found in wheels([f"{name}=={version}" for name, version in pins], machine).items():
            hashes[name].add(found)
    lines = [
        " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{each}" for each in sorted(hashes[name]))])
        for name, version in pins
    ]
    FILE.write_text("\n".join([*comment, *lines, ""]), encoding="utf-8")


def versions(text: str) -> dict[str, str]:
    """Of the packages in a file of requirements."""
    pins = (line.split()[0].partition("==") for line in text.splitlines() if "==" in line and not line.startswith("#"))
    return {name: version for name, _, version in pins}


def wheels(pins: list[str], machine: str) -> dict[str, str]:
    """The hash of the wheel that pip takes for each package, by the name that it has in `pins`."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.json")
        platforms = [word for glibc in GLIBC for word in ("--platform", f"{glibc}_{machine}")]
        command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--no-deps"]
        command += ["--only-binary=:all:", "--target", directory, "--python-version", PYTHON, *platforms]
        subprocess.run([*command, "--report", str(report), *pins], check=True)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    names = {_plain(pin.partition("==")[0]): pin.partition("==")[0] for pin in pins}
    return {
        names[_plain(each["metadata"]["name"])]: each["download_info"]["archive_info"]["hashes"]["sha256"]
        for each in found
    }


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


if __name__ == "__main__":
    main()
