from __future__ import annotations

import pytest
import torch

from attendant.model.dropout import Dropout, random_mask


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_a_mask_drops_p_of_all_and_keeps_the_mean(p: float) -> None:
    torch.manual_seed(0)
    mask = random_mask(torch.Size((1000, 1001)), p)
    assert (mask == 0).float().mean().item() == pytest.approx(p, abs=1 / 512 + 0.002)
    assert mask.mean().item() == pytest.approx(1, abs=0.003)
    assert len(mask.unique()) == 2


def test_neighbours_are_dropped_independently() -> None:
    torch.manual_seed(0)
    kept = random_mask(torch.Size((1000, 1000)), 0.5) > 0
    for shift in (1, 2, 4, 7, 8, 64):
        assert (kept[:, shift:] == kept[:, :-shift]).float().mean().item() == pytest.approx(0.5, abs=0.005)


def test_the_same_seed_drops_the_same_and_the_next_draw_another() -> None:
    torch.manual_seed(3)
    first, second = random_mask(torch.Size((99,)), 0.5), random_mask(torch.Size((99,)), 0.5)
    torch.manual_seed(3)
    assert torch.equal(random_mask(torch.Size((99,)), 0.5), first)
    assert not torch.equal(first, second)


def test_the_gradient_passes_where_the_value_did() -> None:
    x = torch.ones(64, requires_grad=True)
    y = Dropout(0.5).train()(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_nothing_is_dropped_in_evaluation_or_with_p_zero() -> None:
    x = torch.ones(5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0).train()(x) is x


def test_the_mask_has_the_dtype_of_what_it_multiplies() -> None:
    x = torch.ones(64, dtype=torch.bfloat16)
    assert Dropout(0.5).train()(x).dtype == torch.bfloat16
