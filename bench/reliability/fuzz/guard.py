"""What happens while an input is read: programs that are started, files that are changed, sockets; by audit events."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

ACTS = (  # events of which none belongs to reading a file; a name with a dot at its end stands for all that begin so
    *("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.startfile", "pty.spawn"),
    *("subprocess.", "ctypes.", "socket.", "shutil.", "webbrowser.", "urllib.", "ftplib.", "smtplib.", "http.client."),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown"),
    *("os.utime", "os.putenv", "os.unsetenv", "os.chdir", "os.kill", "os.setxattr", "tempfile."),
)
ON_FILES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.utime", "shutil.", "tempfile.", "open")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Guard:
    """Notes what happens while it is on. `acts` may happen; files may be changed in `directory`, where one is given."""

    def __init__(self) -> None:
        self.on, self.found = False, list[str]()
        self.acts: tuple[str, ...] = ()
        self.directory: Path | None = None
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            if not opens_to_write(arguments):
                return
        elif not _among(event, ACTS) or _among(event, self.acts):
            return
        if self.directory is not None and _among(event, ON_FILES) and self._inside(arguments):
            return
        self.found.append(f"{event} {arguments[:1]!r:.100}")

    def _inside(self, arguments: tuple[Any, ...]) -> bool:
        path, folder = arguments[0], arguments[-1]  # the folder's descriptor, for a path that is relative to one
        if not isinstance(path, str | os.PathLike):
            return False
        whole = Path(path)
        if not whole.is_absolute() and isinstance(folder, int) and folder >= 0:
            whole = Path(f"/proc/self/fd/{folder}").resolve() / whole
        whole = whole.resolve()
        return self.directory is not None and self.directory.resolve() in (whole, *whole.parents)


def opens_to_write(arguments: tuple[Any, ...]) -> bool:
    """Whether these are arguments of the event `open` for a file that is written; os.open gives flags and no mode."""
    _, mode, flags = arguments
    if isinstance(mode, str):
        return bool(set(mode) & set("wax+"))
    return isinstance(flags, int) and bool(flags & WRITING)


def _among(event: str, names: tuple[str, ...]) -> bool:
    return any(event == name or (name.endswith(".") and event.startswith(name)) for name in names)
