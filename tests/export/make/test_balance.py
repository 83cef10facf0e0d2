"""Channels far larger than the others are divided, and the model computes the same bits in f32."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from attendant.export.make.balance import balance, pairs, powers_of
from attendant.model.checkpoint import load_trained
from attendant.model.transformer import Transformer
from tests.export.test_int8_of_trained import stretch
from tests.support.small_models import T5, make_model

MODELS: dict[str, dict[str, Any]] = {"post-norm": {}, "pre-norm": {"norm": "pre"}, "t5": T5}


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_large_channels_are_as_the_others_and_no_bit_of_f32_changes(kind: str) -> None:
    model = make_model(**MODELS[kind])
    balance(model)
    stretched = copy.deepcopy(model)
    stretch(stretched)
    source, target = torch.tensor([[5, 6, 7, 3]]), torch.tensor([[2, 6, 5]])
    before, large = stretched(source, target), channels(stretched)
    assert balance(stretched) == large > 0
    assert torch.equal(stretched(source, target), before)
    assert channels(stretched) < large / 10


def channels(model: Transformer) -> int:
    """How many are far larger or smaller than the others."""
    return sum(int(powers_of(written.sizes(), read.sizes()).count_nonzero()) for written, read in pairs(model))


def test_a_model_without_large_channels_stays_as_it_is() -> None:
    assert balance(load_trained(Path(__file__).parents[3] / "model" / "default").model) == 0


def test_half_of_what_a_channel_is_larger_as_written_and_smaller_as_read_is_moved() -> None:
    written, read = torch.ones(12), torch.ones(12)
    written[0], read[0] = 32.0, 1 / 32
    written[1] = 16.0
    written[2] = 2.0  # too little
    written[3] = 0.0  # of no use
    read[4] = 16.0
    assert powers_of(written, read).tolist() == [5, 2, 0, 0, -2, *[0] * 7]
    assert powers_of(torch.zeros(2), read[:2]).tolist() == [0, 0]
