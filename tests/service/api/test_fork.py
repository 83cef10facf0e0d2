"""A process that is forked from one with a model: told what to do, and free to make a model of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import os, sys, warnings
warnings.simplefilter("ignore")  # of fork beside threads
from attendant import Model, NotReadyError

model = Model(threads=1)
answer = model.generate("attendant").text
child = os.fork()
if child == 0:
    for call in (lambda: model.generate("cat"), lambda: model.score("cat", "K"), lambda: model.stream_async("cat")):
        try:
            call()
        except NotReadyError as error:
            print(error)
    model.close()
    with Model(threads=1) as own:
        print(own.generate("attendant").text == answer)
    sys.stdout.flush()
    os._exit(3)  # as the workers of multiprocessing end
print("child:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print("parent:", model.generate("attendant").text == answer)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_forked_process_is_told_so_and_can_make_its_own_model() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    assert lines[3:] == ["True", "child: 3", "parent: True"], done.stdout + done.stderr
    for line in lines[:3]:
        assert "forked" in line
        assert "Make the Model in the process that uses it" in line
