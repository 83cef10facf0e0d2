"""Files are whole or not there, on a full disk too."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError

import attendant
from attendant.model import checkpoint, files
from attendant.model.corpus import g2p, synthetic
from attendant.model.distillation.teachers import TeacherDistributions
from attendant.model.training.train import train
from tests.model.training.test_train import LINES, plan_for

MOST = 400_000  # bytes on the small disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, nearly without space; where mounting is not allowed there is none."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={MOST}", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "step-00000004/model.safetensors")


def test_a_directory_that_cannot_be_filled_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        files.write_directory(tmp_path / "data", lambda directory: full((directory / "half").write_text("x")))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_json({"a": 1}, tmp_path / "config.json")
    before = (tmp_path / "config.json").read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_json({"a": 2}, tmp_path / "config.json")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert (tmp_path / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/x"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_said_as_such(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(synthetic, "make_synthetic", fail)
    assert attendant.main(["data", "spelling", "--out", "x"]) == 1
    assert "the disk is full" in capsys.readouterr().err


def test_another_error_of_the_system_is_not_a_full_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert attendant.main(["data", "spelling", "--out", str(tmp_path / "file")]) == 1
    assert "disk is full" not in capsys.readouterr().err


def test_a_checkpoint_on_a_full_disk_leaves_the_one_before(
    write_tsv: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tsv, run = write_tsv(*LINES), tmp_path / "run"
    train(plan_for(tsv, run, steps=4))
    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        train(plan_for(tsv, run, steps=8, resume=True))
    monkeypatch.undo()
    assert checkpoint.latest(run) == run / "step-00000004"
    assert not list(run.glob(".*"))
    assert train(plan_for(tsv, run, steps=8, resume=True)).step == 8


def test_on_a_disk_that_fills_up_nothing_truncated_stays(
    small_disk: Path, write_tsv: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Space runs out in the checkpoint of step 1, whose weights and optimizer are over a megabyte."""
    tsv = str(write_tsv(*LINES))
    run = small_disk / "run"
    arguments = ["train", "--preset=tiny", "--data", tsv, "--valid", tsv, "--out", str(run), "--set=steps=1"]
    assert attendant.main([*arguments, "--threads=1"]) == 1
    assert "the disk is full" in capsys.readouterr().err
    assert checkpoint.latest(run) is None
    assert not list(run.glob(".*"))


def test_an_encoded_corpus_and_a_corpus_that_do_not_fit_are_not_there(
    small_disk: Path, write_tsv: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    tsv = str(write_tsv(*LINES * 100))  # over a megabyte of tokens
    arguments = ["train", "--preset=tiny", "--data", tsv, "--valid", tsv, "--out", str(small_disk / "run")]
    assert attendant.main(arguments) == 1
    assert "the disk is full" in capsys.readouterr().err
    assert not (small_disk / "run" / "data").exists()
    with pytest.raises(OSError, match="No space left"):
        g2p.make_corpus(small_disk)
    assert not (small_disk / "train.tsv").exists()


def test_teachers_distributions_that_do_not_fit_are_refused_before_they_are_written(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        TeacherDistributions.create(small_disk, np.full(1000, 30), 100)
