"""Compiles the kernels' shared library from the C++ sources beside this file. Standard library only: setup.py runs it.

python -m attendant.kernels.compile     compiles it in place, after a change of its sources
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "cc"
LIBRARY = "libattendant_kernels.so"
MISSING = (
    "attendant: no C++ compiler was found, so the kernels are not compiled and the portable graphs are used, "
    "which are slower; install one (Debian: apt-get install g++) and install attendant again."
)
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra")
# g++ 12 warns of variables in its own headers of AVX512 that are not set on purpose.
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mavx2", "-mfma")
QUIET = ("-Wno-uninitialized", "-Wno-maybe-uninitialized")
PATHS: dict[str, dict[str, tuple[str, ...]]] = {  # by processor: each path's file, with the flags of its instructions
    "x86_64": {
        "path_avx512vnni": (*AVX512, *QUIET),
        "path_avxvnni": ("-mavx2", "-mfma", "-mavxvnni"),
        "path_avx2": ("-mavx2", "-mfma"),
        "path_portable": (),
    },
    "aarch64": {
        "path_i8mm": ("-march=armv8.2-a+dotprod+i8mm",),
        "path_dotprod": ("-march=armv8.2-a+dotprod",),
        "path_portable": (),
    },
}


class CompileError(Exception):
    """The compiler refused the sources; its output is the message."""


def find_compiler() -> str | None:
    """$CXX, or the first of c++, g++ and clang++ that is installed."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    return next((found for name in names if (found := shutil.which(name))), None)


def sources(machine: str) -> dict[Path, tuple[str, ...]]:
    """Every source file for a processor, with the flags that it needs beside FLAGS."""
    paths = PATHS.get(machine, {"path_portable": ()})
    files = sorted(SOURCES.glob("*.cc"))
    return {file: paths.get(file.stem, ()) for file in files if not file.stem.startswith("path_") or file.stem in paths}


def compile_objects(
    compiler: str,
    machine: str,
    directory: Path,
    extra: Sequence[str] = (),
    more: dict[Path, tuple[str, ...]] | None = None,
) -> list[Path]:
    """An object file for each source (and each of `more`), several at a time."""

    def one(item: tuple[Path, tuple[str, ...]]) -> Path:
        file, flags = item
        out = directory / f"{file.stem}.o"
        run([compiler, *FLAGS, *flags, *extra, f"-I{SOURCES}", "-c", str(file), "-o", str(out)])
        return out

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(one, {**sources(machine), **(more or {})}.items()))


def compile_library(out: Path, compiler: str, machine: str = platform.machine(), extra: Sequence[str] = ()) -> None:
    """The shared library at `out`. Only the entry points are visible; the C++ library is linked in."""
    with tempfile.TemporaryDirectory() as directory:
        objects = compile_objects(compiler, machine, Path(directory), extra)
        linked = Path(directory) / LIBRARY
        visible = f"-Wl,--version-script={SOURCES / 'exports.map'}"
        static = ("-static-libstdc++", "-static-libgcc", visible, "-Wl,--no-undefined", "-s")
        run([compiler, "-shared", *map(str, objects), *static, "-pthread", "-o", str(linked)])
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(f".{out.name}.{os.getpid()}")
        shutil.move(linked, partial)
        partial.replace(out)  # a process that has mapped the old one keeps it


def is_current(out: Path) -> bool:
    """Whether the library is newer than all that it is compiled from."""
    files = [*SOURCES.iterdir(), Path(__file__)]
    return out.is_file() and out.stat().st_mtime >= max(file.stat().st_mtime for file in files)


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"{' '.join(command[:1])} failed:\n{done.stdout}{done.stderr}"[:4000])
    if done.stderr:
        print(done.stderr, file=sys.stderr)


def main() -> int:
    compiler = find_compiler()
    if not compiler:
        print(MISSING, file=sys.stderr)
        return 1
    try:
        compile_library(HERE / LIBRARY, compiler)
    except CompileError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
