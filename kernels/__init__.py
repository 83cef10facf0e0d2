"""Operators of our own for onnxruntime, compiled: a shared library that a session registers.

    library()            its file, or None; then why_missing() says why
    register(options, n) a session with these options may use the operators, each on up to n threads
    path_name()          the instruction set that they compute with; supported() lists those of this machine

`ATTENDANT_KERNELS` forces an instruction set, or switches the library `off`; one that this machine does not have is an
UnusableError.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnxruntime as ort

FILE = Path(__file__).with_name("libattendant_kernels.so")
SETTING = "ATTENDANT_KERNELS"
THREADS = "attendant.threads"  # the session's config entry that the library reads
DOMAIN = "attendant"
INTERFACE = 1  # of the library's functions, as cc/register.cc has it


class UnusableError(ValueError):
    """ATTENDANT_KERNELS names what this machine does not have."""

    exit_code = 2


def library() -> Path | None:
    """The shared library if it can be used here, else None."""
    return None if why_missing() else FILE


@cache
def why_missing() -> str:
    """Why there is no library to use, as a sentence; empty if there is one. UnusableError: see `unusable`."""
    forced = os.environ.get(SETTING, "")
    if problem := unusable(forced):
        raise UnusableError(problem)
    if forced == "off":
        return f"{SETTING} is off."
    if reason := _why_not_loaded():
        return f"The kernels {reason}"
    if not forced and supported() == ["portable"]:
        return f"This processor ({platform.machine()}) has no instruction set that makes the kernels faster."
    return ""


def unusable(forced: str) -> str:
    """What is wrong with this value of ATTENDANT_KERNELS on this machine, as a sentence; empty if nothing is."""
    if forced in ("", "off"):
        return ""
    if reason := _why_not_loaded():
        return f"{SETTING} is {forced!r}, but the kernels {reason}"
    if forced not in supported():
        return f"{SETTING} is {forced!r}, which this machine has not: it takes {', '.join(supported())} or off."
    return ""


def register(options: ort.SessionOptions, threads: int) -> None:
    """Make the operators known to a session that is created with `options`; each runs on up to `threads` threads."""
    if why_missing():
        raise RuntimeError(why_missing())
    options.add_session_config_entry(THREADS, str(threads))
    options.register_custom_ops_library(str(FILE))


def path_name() -> str:
    """The instruction set that the operators compute with, such as avx512vnni; "" without a library."""
    if why_missing():
        return ""
    return os.environ.get(SETTING, "") or supported()[0]


def supported() -> list[str]:
    """The instruction sets that the library can use here, the fastest first. OSError if it cannot be loaded."""
    names = _loaded().attendant_supported
    names.restype = ctypes.c_char_p
    return bytes(names()).decode().split()


def _why_not_loaded() -> str:
    """Why there is no library that can be loaded, as the end of a sentence; empty if there is one."""
    if not FILE.is_file():
        return f"are not compiled: {_how_to_compile()}"
    try:
        found = _interface()
    except OSError as error:
        return f"cannot be loaded: {error}."
    if found != INTERFACE:
        return "were compiled from other sources than these: install attendant again, or `make kernels` in a checkout."
    return ""


@cache
def _loaded() -> ctypes.CDLL:
    return ctypes.CDLL(str(FILE))


def _interface() -> int:
    """0 of a library that is older than this number."""
    function = getattr(_loaded(), "attendant_interface", None)
    return int(function()) if function else 0


def _how_to_compile() -> str:
    if platform.system() != "Linux":
        return f"they are for Linux, and this is {platform.system()}."
    return "install a C++ compiler (Debian: apt-get install g++) and then attendant again."
