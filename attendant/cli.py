"""The `attendant` command. A package is imported when one of its commands is named, so serving runs without torch."""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import os
import re
import sys
from collections.abc import Iterable
from typing import NoReturn

from attendant.common.version import VERSION, install_command

# Where a command's function `command(parser, arguments)` is. Its errors have an `exit_code` and a sentence.
COMMANDS = {
    "data": ("attendant.model.cli", "make a corpus"),
    "train": ("attendant.model.cli", "train a model on pairs of texts"),
    "distill": ("attendant.model.cli", "write down what trained models say of a corpus, for a student to learn from"),
    "evaluate": ("attendant.export.evaluate", "error rates of a trained model or of a bundle"),
    "plot": ("attendant.model.cli", "draw curves, positions and attention as PNG"),
    "release": ("attendant.model.cli", "the best weights of a run, small enough to hand on"),
    "import": ("attendant.model.importers.cli", "turn a model that was trained elsewhere into a run"),
    "models": ("attendant.hub.cli", "the models of Hugging Face that are in the cache: list, pull, remove"),
    "export": ("attendant.export.cli", "turn a trained model into a bundle of ONNX graphs, verified against PyTorch"),
    "verify": ("attendant.export.cli", "check that a bundle is whole, and that it is its model"),
    "serve": ("attendant.service.commands.serve", "serve a bundle over HTTP"),
    "generate": ("attendant.service.commands.generate", "decode texts with a bundle, without a server"),
    "bench": ("attendant.service.commands.bench", "what this machine does with a bundle, and the best settings for it"),
    "info": ("attendant.service.commands.info", "what a bundle is, and what this machine would run it on"),
}

# How OpenMP's threads wait for each other: they sleep, GNU's after a spin of some microseconds, so that another process
# on the machine does not stop them. It is read when torch is loaded, so it is set before, for commands that compute.
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
PASSIVE_WAITING = ("train", "distill", "evaluate", "plot", "release", "import", "export", "verify")
FLAG = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
FULL = (errno.ENOSPC, errno.EDQUOT)


class UsageError(Exception):
    exit_code = 2


class Parser(argparse.ArgumentParser):
    """argparse, whose complaint is one sentence."""

    def error(self, message: str) -> NoReturn:
        wrong, _, flags = message.partition("unrecognized arguments: ")
        if flags and not wrong and flags.startswith("-"):
            flag = flags.split()[0].partition("=")[0]
            message += did_you_mean(flag, self._flags())
        raise UsageError(f"{message} (see {self.prog} --help).")

    def _flags(self) -> list[str]:
        """Those of the usage line; argparse has no public list."""
        return ["--help", *FLAG.findall(self.format_usage())]


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0 if arguments else 2
    command = arguments[0]
    if command in ("-V", "--version"):
        print(f"attendant {VERSION}")
        return 0
    if command not in COMMANDS:
        hint = did_you_mean(command, COMMANDS)
        print(f"attendant: unknown command {command!r}{hint}; it takes one of {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    if command in PASSIVE_WAITING and not WAITING.keys() & os.environ.keys():
        os.environ.update(WAITING)
    try:
        module = importlib.import_module(COMMANDS[command][0])
        function = getattr(module, {"import": "import_model"}.get(command, command))
        function(Parser(prog=f"attendant {command}", description=COMMANDS[command][1]), arguments[1:])
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  (nobody reads on; leave quietly)
        return 1
    except Exception as error:
        if "ATTENDANT_TRACEBACK" in os.environ:
            raise
        if not getattr(error, "is_told", False):
            print(f"attendant {command}: {_sentence(error)}", file=sys.stderr)
        return int(getattr(error, "exit_code", 1))
    return 0


def did_you_mean(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f", did you mean {near[0]}?" if near else ""


def _sentence(error: Exception) -> str:
    if hasattr(error, "exit_code"):
        return str(error)
    if _is_full_disk(error):
        where = f", writing {error.filename}" if isinstance(error, OSError) and error.filename else ""
        return f"the disk is full{where}: nothing incomplete is left behind; free some space and run the command again."
    if isinstance(error, ModuleNotFoundError):
        return f"this needs {error.name}, which is not installed; run: {install_command('train')}."
    return f"{type(error).__name__}: {error} (set ATTENDANT_TRACEBACK=1 to see where)"


def _is_full_disk(error: Exception) -> bool:
    """safetensors has an error of its own, which names the system's in its text."""
    by_number = isinstance(error, OSError) and error.errno in FULL
    return by_number or any(f"(os error {number})" in str(error) for number in FULL)


def _usage() -> str:
    rows = [f"  {name:<10} {about}" for name, (_, about) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: attendant COMMAND [OPTIONS]",
            "",
            *rows,
            "",
            "attendant COMMAND --help says more; attendant --version.",
        ]
    )
