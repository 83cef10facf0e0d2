"""The engine's tests, and the kernels', with the library compiled with a sanitizer of the compiler.

    python -m tests.kernels.sanitized [--sanitize address undefined thread] [PATHS...]

The library alone is instrumented: Python and onnxruntime are as ever, and what they do by themselves is not looked at.
A report of the sanitizer ends the tests. Linux, with GCC.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from attendant.kernels.compile import LIBRARY, SOURCES, compile_objects, find_compiler
from attendant.kernels.compile import run as link

MODULE = "tests.kernels.sanitized"
VARIABLE = "ATTENDANT_SANITIZED_LIBRARY"  # read by tests/conftest.py
PATHS = ["tests/service/engine", "tests/kernels", "tests/service/api"]
RUNTIME = {"address": "libasan.so", "thread": "libtsan.so", "undefined": "libubsan.so"}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0:allocator_may_return_null=1:exitcode=86",
    "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:report_signal_unsafe=0:exitcode=86:halt_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=86",
}


def build(directory: Path, compiler: str, sanitizer: str) -> Path:
    library, wanted = directory / LIBRARY, f"-fsanitize={sanitizer}"
    flags = (wanted, "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1")
    objects = compile_objects(compiler, platform.machine(), directory, flags)
    visible = f"-Wl,--version-script={SOURCES / 'exports.map'}"
    link([compiler, "-shared", wanted, visible, *map(str, objects), "-pthread", "-o", str(library)])
    return library


def run(compiler: str, sanitizer: str, arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as directory:
        library = build(Path(directory), compiler, sanitizer)
        runtime = subprocess.check_output([compiler, f"-print-file-name={RUNTIME[sanitizer]}"], text=True).strip()
        environment = {**os.environ, **OPTIONS, VARIABLE: str(library), "LD_PRELOAD": runtime}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
        print(f"{sanitizer}: {' '.join(arguments)}", flush=True)
        return subprocess.run([*command, "--timeout", "1800", *arguments], env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--sanitize", nargs="+", choices=RUNTIME, default=list(RUNTIME))
    parser.add_argument("paths", nargs="*", default=PATHS)
    given = parser.parse_args()
    compiler = find_compiler()
    if not compiler:
        print("No C++ compiler.", file=sys.stderr)
        return 1
    return max(run(compiler, each, given.paths) for each in given.sanitize)


if __name__ == "__main__":
    raise SystemExit(main())
