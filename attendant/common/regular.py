"""Opening only what is a regular file: a pipe would block its reader for ever, a device might never end."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_regular(path: Path) -> BufferedReader:
    """The file, to be read; OSError, without waiting, if it is anything else."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    number = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return open(number, "rb")  # noqa: PTH123  # it has a number, no path


def read_regular(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()
