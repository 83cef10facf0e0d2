"""Each optimizer against its update rule written out, and each schedule against its formula."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from attendant.model import checkpoint
from attendant.model.config import TrainConfig
from attendant.model.training.muon import orthogonalise
from attendant.model.training.optim import cosine_rate, learning_rate, make_optimizer, paper_rate, trapezoid_rate
from tests.support.small_models import make_model

RATE = 0.1


class Line(nn.Module):
    """y = w x + b"""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x + self.b


# The rows that the notes print: w and b after a step, and the loss before it.
SGD_ROWS = {
    0: (0.28, 0.10, 33.000),
    20: (1.98, 0.73, 0.123),
    40: (2.07, 0.79, 0.015),
    60: (2.06, 0.82, 0.012),
    80: (2.06, 0.84, 0.009),
}


def test_sgd_on_five_points_prints_the_rows_of_the_notes() -> None:
    x, line = torch.arange(5.0), Line()
    optimizer = make_optimizer(line, TrainConfig(optimizer="sgd"))
    optimizer.param_groups[0]["lr"] = 0.01
    rows = {}
    for step in range(81):
        loss = (line(x) - (2 * x + 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows[step] = (round(line.w.item(), 2), round(line.b.item(), 2), round(loss.item(), 3))
    assert {step: rows[step] for step in SGD_ROWS} == SGD_ROWS


def sgd(w: Tensor, g: Tensor, s: dict[str, Tensor], t: int) -> Tensor:
    return w - RATE * g


def momentum(w: Tensor, g: Tensor, s: dict[str, Tensor], t: int) -> Tensor:
    s["v"] = 0.9 * s.get("v", 0) + g
    return w - RATE * s["v"]


def adagrad(w: Tensor, g: Tensor, s: dict[str, Tensor], t: int) -> Tensor:
    s["sum"] = s.get("sum", 0) + g**2
    return w - RATE * g / (s["sum"].sqrt() + 1e-9)


def rmsprop(w: Tensor, g: Tensor, s: dict[str, Tensor], t: int) -> Tensor:
    s["mean"] = 0.9 * s.get("mean", 0) + 0.1 * g**2
    return w - RATE * g / (s["mean"].sqrt() + 1e-9)


def adam(w: Tensor, g: Tensor, s: dict[str, Tensor], t: int) -> Tensor:
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.98 * s.get("v", 0) + 0.02 * g**2
    return w - RATE * (s["m"] / (1 - 0.9**t)) / ((s["v"] / (1 - 0.98**t)).sqrt() + 1e-9)


@pytest.mark.parametrize("rule", [sgd, momentum, adagrad, rmsprop, adam])
def test_an_optimizer_follows_its_update_rule(rule: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    optimizer = make_optimizer(layer, TrainConfig(optimizer=rule.__name__, alpha=0.9))  # RMSProp's of the notes
    optimizer.param_groups[0]["lr"] = RATE
    expected, state = layer.weight.detach().clone(), {}
    for t in range(1, 6):
        layer.weight.grad, layer.bias.grad = torch.randn(2, 3), torch.zeros(2)
        expected = rule(expected, layer.weight.grad, state, t)
        optimizer.step()
    assert_close(layer.weight.detach(), expected)


def test_muon_makes_singular_values_alike_and_keeps_directions() -> None:
    torch.manual_seed(0)
    for shape in ((8, 8), (12, 5), (5, 12)):
        matrix = torch.randn(3, *shape)
        u, _, v = torch.linalg.svd(matrix, full_matrices=False)
        result = orthogonalise(matrix)
        values = torch.linalg.svdvals(result)
        assert values.min() > 0.4
        assert values.max() < 1.4
        diagonal = u.mT @ result @ v.mT
        off = diagonal - torch.diag_embed(diagonal.diagonal(dim1=-2, dim2=-1))
        assert off.abs().max() < 1e-4


def test_muon_takes_the_matrices_of_the_layers_and_adam_the_rest() -> None:
    model = make_model(score="additive")
    muon, rest = make_optimizer(model, TrainConfig(optimizer="muon")).param_groups
    by_muon = {id(p) for p in muon["params"]}
    names = [name for name, p in model.named_parameters() if id(p) in by_muon]
    assert len(names) == 2 * (2 + 2) + 2 * (4 + 2)
    ends = ("project_in.weight", "project_out.weight", "widen.weight", "narrow.weight")
    assert all(name.endswith(ends) for name in names)
    assert len(muon["params"]) + len(rest["params"]) == len(list(model.parameters()))


def test_muons_adam_is_adam_and_its_matrices_move_by_about_as_much() -> None:
    moved = {}
    for name in ("adam", "muon"):
        model = make_model()
        before = checkpoint.weights_of(make_model())
        optimizer = make_optimizer(model, TrainConfig(optimizer=name))
        for group in optimizer.param_groups:
            group["lr"] = RATE
        for step in range(3):
            torch.manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
        moved[name] = {key: weight - before[key] for key, weight in checkpoint.weights_of(model).items()}
    embedding, matrix = "source_embedding.tokens.weight", "encoder.0.feed_forward.widen.weight"
    assert_close(moved["muon"][embedding], moved["adam"][embedding])
    sizes = [moved[name][matrix].square().mean().sqrt().item() for name in ("muon", "adam")]
    assert 0.2 < sizes[0] / sizes[1] < 1.5


def test_muon_decays_matrices_and_embeddings_and_no_vector() -> None:
    moved = {}
    for decay in (0.0, 0.5):
        model = make_model()
        optimizer = make_optimizer(model, TrainConfig(optimizer="muon", weight_decay=decay))
        for group in optimizer.param_groups:
            group["lr"] = RATE
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        moved[decay] = checkpoint.weights_of(model)
    for name, weight in checkpoint.weights_of(make_model()).items():
        decayed = RATE * 0.5 * weight if weight.dim() > 1 else torch.zeros_like(weight)
        assert_close(moved[0.0][name] - moved[0.5][name], decayed, atol=1e-6, rtol=0)


def test_muon_in_bf16_is_near_muon_in_f32() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(2, 32, 16)
    half = orthogonalise(matrix, torch.bfloat16)
    assert half.dtype == torch.float32
    assert_close(half, orthogonalise(matrix), atol=0.03, rtol=0)


def test_the_papers_schedule() -> None:
    assert paper_rate(4000, 512, 4000) == pytest.approx(512**-0.5 * 4000**-0.5)
    assert paper_rate(2000, 512, 4000) == pytest.approx(paper_rate(4000, 512, 4000) / 2)
    assert paper_rate(16000, 512, 4000) == pytest.approx(paper_rate(4000, 512, 4000) / 2)


@pytest.mark.parametrize("rate", [cosine_rate, lambda *a: trapezoid_rate(*a, 0.5)], ids=["cosine", "trapezoid"])
def test_the_other_schedules_rise_to_one_and_end_at_zero(rate: Callable[[int, int, int], float]) -> None:
    rates = [rate(step, 100, 10) for step in range(1, 101)]
    assert rates[4] == pytest.approx(0.5)
    assert max(rates) == rates[9] == pytest.approx(1)
    assert rates[-1] == pytest.approx(0)
    assert all(a >= b for a, b in itertools.pairwise(rates[9:]))


def test_the_trapezoid_is_level_until_its_decay() -> None:
    assert trapezoid_rate(60, 100, 10, 0.3) == 1
    assert trapezoid_rate(85, 100, 10, 0.3) == pytest.approx(0.5)
    assert trapezoid_rate(100, 100, 10, 0.0) == 1


def test_the_learning_rate_is_the_schedules_factor() -> None:
    config = TrainConfig(schedule="cosine", learning_rate=0.5, warmup=10, steps=100)
    assert learning_rate(10, config, 512) == pytest.approx(0.5)
