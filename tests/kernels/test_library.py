"""Which library is used and why not, and what it was compiled from."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import onnxruntime as ort
import pytest

from attendant import kernels
from attendant.kernels import compile as compiling
from attendant.kernels.search import FUNCTIONS
from tests.kernels import native

ROOT = Path(__file__).parents[2]
compiled = pytest.mark.skipif(not kernels.FILE.is_file(), reason="the kernels are not compiled")
with_compiler = pytest.mark.skipif(compiling.find_compiler() is None, reason="no C++ compiler")


def asked(code: str, forced: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, kernels.SETTING: forced}
    command = [sys.executable, "-c", f"from attendant import kernels; {code}"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_off_is_a_reason_and_no_library() -> None:
    done = asked("print(kernels.library(), kernels.path_name() or '-', kernels.why_missing())", "off")
    assert done.stdout == f"None - {kernels.SETTING} is off.\n"


@compiled
def test_an_instruction_set_can_be_forced() -> None:
    for name in kernels.supported():
        assert asked("print(kernels.path_name())", name).stdout.strip() == name


@compiled
def test_an_unknown_instruction_set_is_an_error_that_lists_the_known_ones() -> None:
    done = asked("kernels.library()", "sse9")
    assert done.returncode == 1
    assert f"UnusableError: {kernels.SETTING} is 'sse9'" in done.stderr
    assert f"{', '.join(kernels.supported())} or off." in done.stderr


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["serve", "--models", "."], ["info"], ["generate", "a"]])
def test_a_command_refuses_an_unknown_instruction_set_as_wrong_usage(command: list[str]) -> None:
    environment = {**os.environ, kernels.SETTING: "sse9"}
    done = subprocess.run(
        [sys.executable, "-m", "attendant", *command], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"attendant {command[0]}: {kernels.SETTING} is 'sse9', ")
    assert done.stderr.count("\n") == 1


def test_the_python_api_refuses_an_unknown_instruction_set_as_a_wrong_setting() -> None:
    code = "import attendant\ntry: attendant.Model()\nexcept attendant.SettingsError as error: print(error)"
    environment = {**os.environ, kernels.SETTING: "sse9"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.startswith(f"{kernels.SETTING} is 'sse9', "), done.stderr


@compiled
def test_a_library_of_other_sources_is_not_used_and_said_to_be_that() -> None:
    done = asked("kernels.INTERFACE += 1; print(kernels.library(), kernels.why_missing())", "")
    assert done.stdout.startswith("None The kernels were compiled from other sources than these: install"), done.stderr


@compiled
@pytest.mark.skipif(platform.machine() != "x86_64", reason="of x86-64")
def test_the_portable_path_is_never_the_first_choice() -> None:
    assert kernels.supported()[-1] == "portable"


@compiled
def test_only_the_entry_points_are_visible() -> None:
    done = subprocess.run(["nm", "-D", "--defined-only", kernels.FILE], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in done.stdout.splitlines()}
    graphs = {f"attendant_graph_{name}" for name in ("load", "free", "bind")}
    graphs |= {"attendant_binding_run", "attendant_binding_free", "attendant_problem"}
    asked = {"attendant_interface", "attendant_path", "attendant_supported"}
    assert names == {"RegisterCustomOps", *asked, *graphs, *FUNCTIONS}


@compiled
@pytest.mark.skipif(kernels.library() is None, reason="the library is not used here")
def test_a_number_of_threads_that_is_none_is_refused() -> None:
    with pytest.raises(Exception, match=r"attendant\.threads is 0, and must be a number from 1 to 1024"):
        kernels.register(ort.SessionOptions(), 0)


@with_compiler
@pytest.mark.timeout(600)
def test_the_kernels_own_tests_pass_on_every_path_and_no_path_leaks_its_instructions() -> None:
    """An inline function that two files share is linked once: it must not come from a file with more instructions."""
    compiler = compiling.find_compiler()
    assert compiler
    with tempfile.TemporaryDirectory() as directory:
        program = native.build(Path(directory), compiler)
        anywhere = {name: value for name, value in os.environ.items() if name != kernels.SETTING}
        done = subprocess.run([program], env=anywhere, capture_output=True, text=True, check=False)
        assert done.stdout.endswith("all passed\n"), done.stdout + done.stderr
        for file in Path(directory).glob("path_*.o"):
            symbols = subprocess.run(["nm", "-C", file], capture_output=True, text=True, check=True).stdout
            assert not [line for line in symbols.splitlines() if " W " in line or " V " in line], file.name
