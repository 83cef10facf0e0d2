"""Numbers that are not finite end a training before they reach a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attendant.model import checkpoint
from attendant.model.corpus.data import Batch
from attendant.model.errors import UserError
from attendant.model.training.train import Trainer, train
from attendant.model.training.validate import Validator
from tests.model.training.test_train import LINES, last_weights, plan_for


@pytest.fixture
def tsv(write_tsv: Callable[..., Path]) -> Path:
    return write_tsv(*LINES)


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_gradients_that_are_not_finite_leave_the_checkpoint_before(
    clip: float, tsv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a validation: the loss of that step is still a number, and the weights after it are not."""
    whole = Trainer._loss

    def broken(trainer: Trainer, batch: Batch) -> Tensor:
        loss = whole(trainer, batch)
        if trainer.position.step == 7:
            loss.register_hook(lambda gradient: gradient * torch.nan)
        return loss

    monkeypatch.setattr(Trainer, "_loss", broken)
    run = tmp_path / "run"
    with pytest.raises(
        UserError, match=r"norm of the gradients is nan at step 8; lower .*--resume goes on from .*00004"
    ):
        train(plan_for(tsv, run, steps=8, clip=clip))
    assert checkpoint.latest(run) == run / "step-00000004"
    monkeypatch.undo()
    assert train(plan_for(tsv, run, steps=8, clip=clip, resume=True)).step == 8
    assert all(weight.isfinite().all() for weight in last_weights(run).values())


def test_a_validation_loss_that_is_not_finite_writes_no_checkpoint(
    tsv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Validator, "metrics", lambda *_: {"loss": float("inf")})
    with pytest.raises(UserError, match=r"validation loss is inf at step 4; lower .*no checkpoint yet"):
        train(plan_for(tsv, tmp_path / "run"))
    assert checkpoint.latest(tmp_path / "run") is None
