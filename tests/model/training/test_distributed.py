"""How the processes of torchrun find each other."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from attendant.model.errors import UserError
from attendant.model.training import train as training
from attendant.model.training.distributed import World
from tests.model.training.test_train import LINES, plan_for


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, timedelta]]:
    """The backends and time limits that process groups were made with, as the second of two processes with CUDA."""
    found: list[tuple[str, timedelta]] = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, timeout: found.append((backend, timeout)))
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    return found


@pytest.mark.parametrize(("device", "backend"), [("auto", "nccl"), ("cuda", "nccl"), ("cpu", "gloo")])
def test_the_backend_is_that_of_the_device(device: str, backend: str, joined: list[Any]) -> None:
    World.join(device)
    assert [name for name, _ in joined] == [backend]


def test_processes_wait_long_enough_for_a_large_corpus(joined: list[Any]) -> None:
    World.join("cpu")
    assert joined[0][1] >= timedelta(hours=12)


def test_training_joins_by_its_own_device(
    write_tsv: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(World, "join", staticmethod(lambda device: asked.append(device) or World()))
    training.train(plan_for(write_tsv(*LINES), tmp_path / "run", steps=1, device="cpu"))
    assert asked == ["cpu"]


def test_a_process_that_does_not_see_the_run_says_that_the_directory_is_shared(
    write_tsv: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine, whose disk the first process has not written to."""
    monkeypatch.setattr(World, "join", staticmethod(lambda _: World(rank=1, size=2)))
    monkeypatch.setattr(dist, "barrier", lambda: None)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    with pytest.raises(UserError, match=r"process 1 of 2 does not see .*run.* that all of them share"):
        training.train(plan_for(write_tsv(*LINES), tmp_path / "run", steps=1))
