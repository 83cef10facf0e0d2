"""Command lines of the documentation: which there are, and a shell that runs those of a page in order."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest import mock

import attendant
from tests.support.markdown import Block, code_blocks
from tests.support.processes import Process

ROOT = Path(__file__).parents[2]
MAIN = attendant.main
WORDS = ("attendant", "curl", "python", "node", "bash")


@dataclass
class Command:
    """A command line with its continuations, where it stands, and what the page says that it prints."""

    page: str
    line: int
    text: str
    below: list[str] = field(default_factory=list)  # the rest of its block, up to the next command
    printed: str | None = None  # the next block, where only the word "prints" is between

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text, comments=True)

    @property
    def answer(self) -> dict[str, Any] | None:
        """The JSON below it, where nothing is left out of that; its values may be those of another model."""
        try:
            return cast(dict[str, Any], json.loads("".join(self.below)))
        except json.JSONDecodeError:
            return None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def commands_of(page: Path) -> list[Command]:
    """The commands of a page, in order."""
    text = page.read_text(encoding="utf-8")
    lines = text.splitlines()
    found: list[Command] = []
    end = 0  # the number of lines up to the end of the last block with a command
    for block in code_blocks(text):
        if end and " ".join(lines[end : block.line - 1]).strip() == "prints":
            found[-1].printed = block.text
        here: list[Command] = []
        for number, line in _lines(block):
            if line.split(" ")[0] in WORDS:
                here.append(Command(str(page.relative_to(ROOT)), number, line))
            elif here:
                here[-1].below.append(line)
        found += here
        end = block.line - 1 + block.text.count("\n") + 1 if here else 0
    return found


def _lines(block: Block) -> Iterator[tuple[int, str]]:
    """Numbered lines, those that end with a backslash joined with the next."""
    joined, first = "", block.line
    for number, line in enumerate(block.text.splitlines(), block.line):
        joined, first = (f"{joined} {line.strip()}", first) if joined else (line, number)
        if joined.endswith("\\"):
            joined = joined.removesuffix("\\").rstrip()
        else:
            yield first, joined
            joined = ""


class Shell:
    """Runs commands in a directory. Services listen on free ports, and what asks port 8000 or 8010 is led to them."""

    def __init__(self, directory: Path, extra: Mapping[str, list[str]]) -> None:
        """`extra`: arguments to add to the commands of `attendant` that begin with a text."""
        self.directory = directory
        self._extra = extra
        self._services: dict[str, Process] = {}
        self._done: dict[str, str] = {}

    def run(self, command: Command) -> str:
        """What it prints; it must succeed. The same command of `attendant` is run once."""
        words = command.words
        if words[:2] == ["attendant", "serve"]:
            self._serve(words[2:])
            return ""
        if words[0] == "attendant":
            if command.text not in self._done:
                self._done[command.text] = self._captured(lambda: self.attendant(words[1:]))
            return self._done[command.text]
        if words[0] == "python" and "import Model, main" in (ROOT / words[1]).read_text(encoding="utf-8"):
            return self._run_script(words[1])
        return self._run_process(words)

    def attendant(self, arguments: list[str]) -> int:
        """The command in this process, where torch is loaded already; its exit code."""
        line = " ".join(["attendant", *arguments])
        added = [word for beginning, words in self._extra.items() if line.startswith(beginning) for word in words]
        return MAIN([*arguments, *added])

    def close(self) -> None:
        for service in self._services.values():
            service.stop()

    def _run_script(self, script: str) -> str:
        with mock.patch.object(sys, "argv", [script]), mock.patch.object(attendant, "main", self.attendant):
            return self._captured(lambda: runpy.run_path(str(ROOT / script), run_name="__main__"))

    def _captured(self, act: Callable[[], object]) -> str:
        printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # `attendant generate` writes to its buffer
        with contextlib.chdir(self.directory), contextlib.redirect_stdout(printed):
            code = act()
        printed.flush()
        text = printed.buffer.getvalue().decode()
        assert not isinstance(code, int) or code == 0, text
        return text

    def _run_process(self, words: list[str]) -> str:
        words = [sys.executable if word == "python" else word for word in words]
        words = [str(ROOT / word) if word.startswith("examples/") else word for word in words]
        if words[0] == "curl":
            words = ["curl", "--silent", "--show-error", "--fail-with-body", *words[1:]]
            words = [
                re.sub(r"(?<=[a-z1]:)\d{4}(?=/)", lambda m: str(self._port(m[0])), word, count=1) for word in words
            ]
        else:
            words.append(f"http://127.0.0.1:{self._port('8000')}")
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(words, cwd=self.directory, capture_output=True, text=True, timeout=60, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _serve(self, flags: list[str]) -> None:
        """Starts it; the port that it names, else 8000, stands for the one that it has."""
        port = flags[flags.index("--port") + 1] if "--port" in flags else "8000"
        kept = [flag for flag in flags if flag not in ("--port", port)]
        paths = [str(self.directory / flag) if (self.directory / flag).exists() else flag for flag in kept]
        if port in self._services:
            self._services.pop(port).stop()
        self._services[port] = Process(None, *paths, "--admin-keys", "ADMIN_KEY")

    def _port(self, named: str) -> int:
        if named not in self._services:
            self._serve(["--port", named])
        return self._services[named].port


def same_numbers_aside(printed: str, documented: str) -> bool:
    """Equal, but that numbers with decimals may differ by 0.02, as they do from processor to processor."""
    number = r"-?\d+\.\d+"
    if re.sub(number, "N", printed.strip()) != re.sub(number, "N", documented.strip()):
        return False
    pairs = zip(re.findall(number, printed), re.findall(number, documented), strict=True)
    return all(abs(float(mine) - float(theirs)) <= 0.02 for mine, theirs in pairs)
