"""The scripts that install: a word while pip is silent, and nothing of the system unless it was asked for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory before all others on PATH."""
    directory = tmp_path / "programs"
    directory.mkdir()
    return directory


def write_program(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    path.chmod(0o755)


def run(script: str, *arguments: str, programs: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: text for name, text in os.environ.items() if name not in ("CI", "INSTALL")}
    environment = {**inherited, "PATH": f"{programs}:{os.environ['PATH']}", **variables}
    command = [str(ROOT / "deploy" / script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def apt_calls(programs: Path) -> Path:
    """What apt-get was called with, by a user that `id` takes for root."""
    calls = programs.parent / "calls"
    write_program(programs / "apt-get", f'echo "$*" >> {calls}')
    write_program(programs / "id", "echo 0")
    return calls


def test_a_program_that_is_there_needs_nothing(programs: Path, apt_calls: Path) -> None:
    done = run("need.sh", "sh", "dash", programs=programs, INSTALL="yes")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not apt_calls.exists()


def test_a_missing_program_is_named_and_not_installed_unasked(programs: Path, apt_calls: Path) -> None:
    done = run("need.sh", "no-such-program", "its-package", programs=programs)
    assert done.returncode == 1
    assert "no-such-program is missing. On Debian: apt-get install its-package, or INSTALL=yes" in done.stderr
    assert not apt_calls.exists()


@pytest.mark.parametrize("consent", [{"INSTALL": "yes"}, {"CI": "true"}])
def test_a_missing_program_is_installed_where_that_was_asked_for(
    programs: Path, apt_calls: Path, consent: dict[str, str]
) -> None:
    done = run("need.sh", "no-such-program", "its-package", programs=programs, **consent)
    assert done.returncode == 0, done.stderr
    assert apt_calls.read_text(encoding="utf-8").splitlines()[-1].endswith(" its-package")


def test_without_root_it_says_what_to_install(programs: Path, apt_calls: Path) -> None:
    write_program(programs / "id", "echo 1000")
    done = run("need.sh", "no-such-program", "its-package", programs=programs, INSTALL="yes")
    assert done.returncode == 1
    assert "install it yourself (Debian: its-package)" in done.stderr
    assert not apt_calls.exists()


def test_nothing_else_calls_apt_get() -> None:
    scripts = [ROOT / "Makefile", *(ROOT / ".ci").iterdir(), *(ROOT / "deploy").glob("*.*")]
    calling = [path.name for path in scripts if "apt-get" in path.read_text(encoding="utf-8")]
    assert calling == ["need.sh"]


def test_pip_is_accompanied_by_words(tmp_path: Path, programs: Path) -> None:
    write_program(tmp_path / ".venv" / "bin" / "python", f'echo "$*" >> {tmp_path}/called', "sleep 1")
    done = run("pip_install.sh", str(tmp_path / ".venv"), ".[train]", "torch", programs=programs, EVERY="0.05")
    first, *between, last = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert first == f"installing torch into {tmp_path}/.venv"
    assert between
    assert all(line.startswith("still installing, ") for line in between)
    assert last.startswith("installed in ")
    install, kernels = (tmp_path / "called").read_text(encoding="utf-8").splitlines()
    assert install.endswith("-e .[train]")
    assert "kernels.why_missing()" in kernels  # whoever has no compiler is told so: pip shows nothing of a build


def test_a_pip_that_fails_is_not_called_installed(tmp_path: Path, programs: Path) -> None:
    write_program(tmp_path / ".venv" / "bin" / "python", "exit 3")
    done = run("pip_install.sh", str(tmp_path / ".venv"), ".", "it", programs=programs)
    assert done.returncode == 3
    assert "installed" not in done.stdout


def test_the_environment_is_made_where_it_is_missing(tmp_path: Path, programs: Path) -> None:
    write_program(programs / "made", "exit 0")
    python = f'mkdir -p "$3/bin"; cp {programs}/made "$3/bin/python"'
    write_program(programs / "some-python", python)
    done = run("pip_install.sh", str(tmp_path / "new"), ".", "it", programs=programs, PYTHON="some-python")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new" / "bin" / "python").is_file()
