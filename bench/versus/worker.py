"""An engine in a process of its own, which works only when it is told to.

    worker = Worker("ctranslate2", path, "int8", threads=2)
    seconds, answers = worker.answer(sources, beam_size=4, length=24)

The process holds one engine and nothing else, so its memory is the engine's, and engines that take turns do not share
threads. It reads commands as lines of JSON and answers in lines of JSON; time is taken inside it, around the engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.versus.engines import Answer, Source, make_engine

ROOT = Path(__file__).parents[2]
LONGEST_WAIT = 5.0  # seconds for a closing process to end


class Worker:
    """The parent's side."""

    def __init__(self, kind: str, path: Path, precision: str, threads: int) -> None:
        self.kind, self.precision = kind, precision
        command = [sys.executable, "-m", "bench.versus.worker", kind, str(path), precision, str(threads)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.start_seconds = self._read()["seconds"]

    def answer(
        self, sources: list[Source], beam_size: int, length: int | None, scores: bool = False
    ) -> tuple[float, list[Answer]]:
        """The seconds that it took, and the answers."""
        found = self._ask({"sources": sources, "beam_size": beam_size, "length": length, "scores": scores})
        return found["seconds"], [Answer(tuple(ids), score) for ids, score in found["answers"]]

    def memory(self) -> dict[str, int]:
        """Resident bytes, now and at most."""
        return memory_of(self._process.pid)

    def processor_seconds(self) -> float:
        """What all its threads have used since it began."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(LONGEST_WAIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self.kind} in {self.precision} has ended; see its words above.")
        found: dict[str, Any] = json.loads(line)
        return found


def memory_of(process: int) -> dict[str, int]:
    """Resident bytes of a process, now and at most."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {"resident": _bytes(fields["VmRSS"]), "peak": _bytes(fields["VmHWM"])}


def _bytes(field: str) -> int:
    return int(field.split()[0]) * 1024


def main() -> None:
    """The child's side."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is not an answer
    kind, path, precision, threads = sys.argv[1:]
    started = time.perf_counter()
    engine = make_engine(kind, Path(path), precision, int(threads))
    print(json.dumps({"seconds": time.perf_counter() - started}), file=out, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        started = time.perf_counter()
        answers = engine.answer(**command)
        seconds = time.perf_counter() - started
        found = [(answer.ids, answer.score) for answer in answers]
        print(json.dumps({"seconds": seconds, "answers": found}), file=out, flush=True)
    engine.close()


if __name__ == "__main__":
    main()
