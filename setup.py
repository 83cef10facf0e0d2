"""What pyproject.toml cannot say: the kernels are compiled with the package, and its wheel is then for one platform."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from kernels import compile as kernels  # noqa: E402

FAILED = (
    "attendant: the kernels could not be compiled, so the portable graphs are used, which are slower; "
    "install a C++ compiler (g++ 11 or later, or clang) and install attendant again."
)


class BuildWithKernels(build_py):
    """Python files as ever, and the shared library beside kernels/__init__.py; without a compiler, one sentence."""

    def run(self) -> None:
        super().run()
        if sys.platform == "linux":
            self.compile_kernels()

    def compile_kernels(self) -> None:
        folder = HERE / "kernels" if self.editable_mode else Path(self.build_lib) / "attendant" / "kernels"
        library = folder / kernels.LIBRARY
        if self.editable_mode and kernels.is_current(library):
            return
        compiler = kernels.find_compiler()
        if not compiler:
            print(kernels.MISSING, file=sys.stderr)
            return
        try:
            kernels.compile_library(library, compiler)
        except kernels.CompileError as error:
            print(f"{FAILED} {error}", file=sys.stderr)


class WithKernels(Distribution):
    """Installed where files for one platform go."""

    def has_ext_modules(self) -> bool:
        return sys.platform == "linux" and kernels.find_compiler() is not None


class PlatformWheel(bdist_wheel):
    """py3-none-linux_x86_64 with the library in it, which needs no Python; py3-none-any without."""

    def get_tag(self) -> tuple[str, str, str]:
        built = Path(self.get_finalized_command("build").build_lib)
        compiled = (built / "attendant" / "kernels" / kernels.LIBRARY).is_file()
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        return "py3", "none", (self.plat_name if self.plat_name_supplied else platform) if compiled else "any"


setup(distclass=WithKernels, cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel})
