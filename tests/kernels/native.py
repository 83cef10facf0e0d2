"""Compiles the kernels' own tests (kernels/tests) and runs them, plainly or with a sanitizer of the compiler.

python -m tests.kernels.native [--sanitize address undefined thread] [--valgrind] [--arm64]
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from attendant.kernels.compile import AVX512, HERE, QUIET, SOURCES, compile_objects, find_compiler, run

SANITIZERS = ("address", "undefined", "thread")
ARM64 = "aarch64-linux-gnu-g++"
OWN_NEW = "--soname-synonyms=somalloc=nouserintercepts"  # valgrind leaves search_test.cc its own operator new


def build(
    directory: Path, compiler: str, sanitizer: str = "", machine: str = platform.machine(), speed: str = "-O1"
) -> Path:
    """The test program. path_avxvnni is compiled for AVX512VL, which has its instruction, to run it here."""
    extra = [speed, "-g", "-Werror"]
    if sanitizer:
        extra += [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    defined = ("-DAVXVNNI_BY_AVX512",) if machine == "x86_64" else ()
    files: dict[Path, tuple[str, ...]] = dict.fromkeys((HERE / "tests").glob("*.cc"), defined)
    if machine == "x86_64":
        files[SOURCES / "path_avxvnni.cc"] = (*AVX512, *QUIET)
    objects = compile_objects(compiler, machine, directory, extra, files)
    program = directory / "kernels_test"
    static = ["-static"] if machine != platform.machine() else []
    run([compiler, *extra, *static, "-pthread", *map(str, objects), "-o", str(program)])
    return program


def execute(command: list[str]) -> int:
    print(" ".join(command), flush=True)
    return subprocess.run(command, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sanitize", nargs="+", default=[""], choices=SANITIZERS, help="once with each of these")
    parser.add_argument("--valgrind", action="store_true", help="also under valgrind, on the paths that it can run")
    parser.add_argument("--arm64", action="store_true", help=f"also for ARM64, with {ARM64} and qemu-aarch64")
    options = parser.parse_args()
    compiler = find_compiler()
    if not compiler:
        print("No C++ compiler.", file=sys.stderr)
        return 1
    failed = 0
    for sanitizer in options.sanitize:
        with tempfile.TemporaryDirectory() as directory:
            failed += execute([str(build(Path(directory), compiler, sanitizer))])
    if options.valgrind:  # it knows no AVX512: the program is told of the processor's other paths alone
        with tempfile.TemporaryDirectory() as directory:
            program = build(Path(directory), compiler, speed="-O2")
            failed += execute(["valgrind", "--quiet", "--error-exitcode=1", OWN_NEW, str(program)])
    if options.arm64:
        with tempfile.TemporaryDirectory() as directory:
            arm = shutil.which(ARM64)
            if not arm:
                print(f"{ARM64} is missing: apt-get install g++-aarch64-linux-gnu qemu-user", file=sys.stderr)
                return 1
            failed += execute(["qemu-aarch64", "-cpu", "max", str(build(Path(directory), arm, "", "aarch64"))])
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
