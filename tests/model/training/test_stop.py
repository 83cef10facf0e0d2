"""A training run that is stopped by a signal, and what is said of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import attendant
from attendant.model import checkpoint
from attendant.model.errors import InterruptedRunError
from attendant.model.training.history import read_history
from attendant.model.training.stop import StopRequest
from attendant.model.training.train import Trainer, train
from tests.model.training.test_train import LINES, ROOT, command, environment, last_weights, plan_for, run, same
from tests.support.children import started


@pytest.fixture
def tsv(write_tsv: Callable[..., Path]) -> Path:
    return write_tsv(*LINES, name="train.tsv")


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int, number: int = signal.SIGINT) -> None:
    """Send a signal to this very process while it computes a step."""
    update = Trainer._update

    def update_and_signal(self: Trainer, batches: list) -> tuple[float, int, int]:
        if self.position.step == step - 1:
            os.kill(os.getpid(), number)
        return update(self, batches)

    monkeypatch.setattr(Trainer, "_update", update_and_signal)


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_writes_a_checkpoint_of_the_step_and_says_where(
    number: int, exit_code: int, tsv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(monkeypatch, 6, number)
    with pytest.raises(
        InterruptedRunError, match=r"stopped at step 6 of 12; --resume goes on from .*stopped-00000006"
    ) as e:
        run(tsv, tmp_path / "run")
    assert e.value.exit_code == exit_code
    assert checkpoint.latest(tmp_path / "run") == tmp_path / "run" / "stopped-00000006"


@pytest.mark.parametrize("options", [{"average": 3}, {"ema": 0.9}])
def test_a_run_stopped_by_signals_ends_as_one_left_alone(
    options: dict[str, float], tsv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same weights, the same best, the same history: a checkpoint of a signal is not one of those averaged."""
    run(tsv, tmp_path / "whole", log_every=5, **options)
    for step in (3, 7):
        monkeypatch.undo()
        stop_at(monkeypatch, step)
        with pytest.raises(InterruptedRunError):
            run(tsv, tmp_path / "parts", log_every=5, resume=True, **options)
    monkeypatch.undo()
    run(tsv, tmp_path / "parts", log_every=5, resume=True, **options)
    assert same(last_weights(tmp_path / "whole"), last_weights(tmp_path / "parts"))
    best = [checkpoint.load_file(checkpoint.find_weights(tmp_path / name)) for name in ("whole", "parts")]
    assert same(*best)
    lines = [read_history(tmp_path / name / "history.jsonl") for name in ("whole", "parts")]
    assert [line | {"seconds": 0} for line in lines[0]] == [line | {"seconds": 0} for line in lines[1]]
    assert not checkpoint.checkpoints(tmp_path / "parts", "stopped")


def test_a_signal_in_a_step_that_is_saved_anyway_saves_it_once(
    tsv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(monkeypatch, 4)
    with pytest.raises(InterruptedRunError, match=r"goes on from .*step-00000004"):
        run(tsv, tmp_path / "run")
    assert not checkpoint.checkpoints(tmp_path / "run", "stopped")


def test_a_second_ctrl_c_stops_at_once_and_says_what_is_there(
    tsv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted_twice(self: Trainer, batches: list) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "_update", interrupted_twice)
    with pytest.raises(InterruptedRunError, match="has no checkpoint yet, so --resume begins anew"):
        run(tsv, tmp_path / "run")


def test_before_the_first_step_a_signal_ends_it_with_nothing_half_written(
    tsv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "attendant.model.training.prepare.EncodedCorpus.write", lambda *_: os.kill(os.getpid(), signal.SIGTERM)
    )
    with pytest.raises(InterruptedRunError, match="begins anew"):
        run(tsv, tmp_path / "run")
    assert not list((tmp_path / "run").glob(".*"))


def test_the_handlers_of_before_are_put_back(tsv: Path, tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopRequest():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_that_is_ignored_stays_so() -> None:
    """A shell script starts what is in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGINT)
        assert not stop.requested
    finally:
        signal.signal(signal.SIGINT, before)


def test_resuming_a_run_without_a_checkpoint_says_that_it_begins_anew(
    tsv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(plan_for(tsv, tmp_path / "run", resume=True, steps=4))
    assert "has no checkpoint yet: beginning anew" in capsys.readouterr().out
    train(plan_for(tsv, tmp_path / "run", resume=True, steps=8))
    assert f"going on from {tmp_path / 'run' / 'step-00000004'}" in capsys.readouterr().out


def test_two_processes_stop_at_the_same_step_when_one_is_signalled(tsv: Path, tmp_path: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    whole = [sys.executable, *torchrun, *command(tsv, tmp_path / "run", steps=100_000, validate_every=5)]
    on_loopback = {**environment(), "GLOO_SOCKET_IFNAME": "lo"}
    with started(whole, cwd=ROOT, env=on_loopback, stderr=subprocess.PIPE) as process:
        while checkpoint.latest(tmp_path / "run") is None:
            assert process.poll() is None
            time.sleep(0.05)
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(workers[-1]), signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    last = checkpoint.latest(tmp_path / "run")
    assert f"--resume goes on from {last}" in said
    assert checkpoint.read_state(last)["step"] == int(last.name.rpartition("-")[2])


def test_the_command_ends_with_the_exit_code_of_the_signal(
    tsv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_at(monkeypatch, 6)
    assert attendant.main(command(tsv, tmp_path / "run")[2:]) == 130
    assert "stopped at step 6 of 12" in capsys.readouterr().err
