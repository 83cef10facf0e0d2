from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import attendant
from attendant.model import checkpoint, threads
from attendant.model.errors import ConfigError
from attendant.model.training.train import train
from tests.model.training.test_train import LINES, ROOT, environment, last_weights, plan_for, same


@pytest.mark.parametrize(
    ("seconds", "most", "expected"),
    [
        ({1: 1.0, 2: 0.6, 4: 0.4, 6: 0.3}, 6, 6),  # every doubling pays
        ({1: 1.0, 2: 0.6, 4: 0.59, 8: 0.1}, 8, 2),  # the second does not
        ({1: 1.0, 2: 0.97}, 2, 1),
        ({1: 1.0}, 1, 1),
    ],
)
def test_threads_are_doubled_for_as_long_as_that_pays(seconds: dict[int, float], most: int, expected: int) -> None:
    assert threads.fastest(seconds.__getitem__, most) == (expected, seconds[expected])


def test_what_is_asked_for_comes_before_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads.asked_for(2) == 2
    assert threads.asked_for(None) == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert threads.asked_for(None) == 0
    with pytest.raises(ConfigError, match="--threads takes a whole number from 1, not 0"):
        threads.asked_for(0)


@pytest.fixture
def tsv(write_tsv: Callable[..., Path]) -> Path:
    return write_tsv(*LINES, name="train.tsv")


def test_measuring_changes_nothing_of_the_result(tsv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "fastest", lambda seconds_with, _: (1, seconds_with(1)))
    train(replace(plan_for(tsv, tmp_path / "measured"), threads=0))
    train(replace(plan_for(tsv, tmp_path / "given"), threads=1))
    assert torch.get_num_threads() == before
    assert same(last_weights(tmp_path / "measured"), last_weights(tmp_path / "given"))


def test_a_resumed_run_keeps_its_number_of_threads(tsv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unmeasured(*_: object) -> tuple[int, float]:
        raise AssertionError("a resumed run has its number")

    train(replace(plan_for(tsv, tmp_path / "run", steps=4), threads=1))
    monkeypatch.setattr(threads, "fastest", unmeasured)
    train(replace(plan_for(tsv, tmp_path / "run", steps=8, resume=True), threads=0))
    assert checkpoint.read_state(checkpoint.latest(tmp_path / "run"))["threads"] == 1


@pytest.mark.parametrize("command", ["train", "evaluate", "export", "distill", "plot"])
def test_openmp_waits_passively_from_before_torch_is_loaded(command: str) -> None:
    code = (
        "import os, sys\n[os.environ.pop(name, None) for name in ('OMP_WAIT_POLICY', 'GOMP_SPINCOUNT')]\n"
        "import attendant.cli, importlib\n"
        "def imported(name):\n"
        "  assert attendant.cli.WAITING.items() <= os.environ.items() and 'torch' not in sys.modules\n"
        "  sys.exit(7)\n"
        f"importlib.import_module = imported\nattendant.main([{command!r}])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), check=False)
    assert done.returncode == 7


def test_a_policy_that_is_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert attendant.main(["train"]) == 2
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    assert "GOMP_SPINCOUNT" not in os.environ
