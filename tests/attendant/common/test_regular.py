"""Only regular files are opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attendant.common.regular import open_regular, read_regular


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_regular(tmp_path / "file") == read_regular(tmp_path / "link") == b"content"


@pytest.mark.parametrize("kind", ["fifo", "directory", "device"])
def test_anything_else_is_refused_without_waiting(kind: str, tmp_path: Path) -> None:
    path = tmp_path / kind
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="it is not a regular file"):
        open_regular(path)
