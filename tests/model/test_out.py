"""A directory that cannot be written to: every command with --out says so before it does any work."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import attendant
from attendant.model import files
from tests.model.training.test_train import LINES


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """To root every directory is writable, but for one on a read-only file system."""
    path = tmp_path / "read-only"
    path.mkdir()
    if os.geteuid():
        path.chmod(0o555)
        yield path
        path.chmod(0o755)
        return
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed")
    yield path
    subprocess.run(["umount", str(path)], check=True)


COMMANDS = [
    ["train", "--preset=tiny", "--data", "TSV", "--valid", "TSV"],
    ["plot", "positions"],
    ["plot", "history", "nowhere"],
    ["export", "nowhere"],
    ["release", "nowhere"],
    ["distill", "nowhere", "--data", "TSV"],
    ["data", "spelling"],
    ["import", "marian", "nowhere"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("inside", ["new", "new/below"])
def test_a_read_only_directory_is_named(
    command: list[str],
    inside: str,
    read_only: Path,
    write_tsv: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    tsv, out = str(write_tsv(*LINES)), read_only / inside
    assert attendant.main([*(tsv if word == "TSV" else word for word in command), "--out", str(out)]) == 1
    reason = "(Read-only file system|Permission denied)"
    said = capsys.readouterr().err
    assert re.fullmatch(rf"attendant {command[0]}: --out {out} cannot be written: {reason}\.\n", said), said


def test_a_file_is_no_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert attendant.main(["plot", "positions", "--out", str(tmp_path / "file")]) == 1
    assert f"--out {tmp_path / 'file'} is a file; name a directory." in capsys.readouterr().err


def test_a_check_leaves_nothing_behind(tmp_path: Path) -> None:
    files.check_writable(tmp_path / "new" / "below")
    files.check_writable(tmp_path, beside=True)
    assert list(tmp_path.iterdir()) == []
