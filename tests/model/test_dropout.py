from __future__ import annotations

import pytest
import torch
from torch import Tensor, tensor
from torch.testing import assert_close

from attendant.model import attention, dropout
from attendant.model.attention import MultiHeadAttention
from attendant.model.config import ModelConfig
from attendant.model.dropout import Dropout, random_mask
from attendant.model.text.tokenizer import BOS, EOS
from attendant.model.transformer import Embedding, FeedForward, Residual, Transformer
from tests.support.small_models import make_model

LAYER = {"self_attention": "attention_dropout", "feed_forward": "ff_dropout"}
LAYER |= {"self_residual": "dropout", "feed_residual": "dropout"}
CROSS = {"cross_attention": "attention_dropout", "cross_residual": "dropout"}
# Every place of dropout in a model of two layers on each side, and the option that it is set by.
PLACES = {f"{side}_embedding": "dropout" for side in ("source", "target")}
PLACES |= {f"encoder.{layer}.{part}": option for layer in range(2) for part, option in LAYER.items()}
PLACES |= {f"decoder.{layer}.{part}": option for layer in range(2) for part, option in (LAYER | CROSS).items()}


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


def dropouts(model: Transformer) -> dict[str, Dropout]:
    """The modules that drop, by the name of what they are in."""
    found = {name: part for name, part in model.named_modules() if isinstance(part, Dropout)}
    return {name.removesuffix(".dropout"): part for name, part in found.items()}


def test_a_model_drops_in_every_place_of_the_paper_with_the_p_of_its_option() -> None:
    p = {"dropout": 0.1, "attention_dropout": 0.2, "ff_dropout": 0.3}
    found = dropouts(make_model(**p))
    assert {name: part.p for name, part in found.items()} == {name: p[option] for name, option in PLACES.items()}


@pytest.mark.parametrize("fused_from", [1, 48], ids=["fused", "written out"])
@pytest.mark.parametrize("place", PLACES)
def test_dropout_in_one_place_alone_acts_in_training_only(
    place: str, fused_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "FUSED_FROM_KEYS", fused_from)
    source, target = tensor([[5, 6, 7, 8, EOS]]), tensor([[BOS, 5, 6, 7]])
    model = make_model()
    whole = model(source, target)
    dropouts(model)[place].p = 0.5
    assert torch.equal(model(source, target), whole)
    model.train()
    assert not torch.allclose(model(source, target), whole, atol=1e-3)


@pytest.fixture
def drop_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever may be dropped is dropped, so that what is left shows what dropout acts on."""
    monkeypatch.setattr(dropout, "random_mask", lambda shape, *_: torch.zeros(shape))


@pytest.mark.usefixtures("drop_all")
def test_an_embedding_drops_the_sum_of_tokens_and_positions() -> None:
    for positions in ("sinusoidal", "learned"):
        part = Embedding(ModelConfig(d_model=8, heads=2, max_length=16, positions=positions), vocabulary=5).train()
        assert torch.equal(part(tensor([[1, 2, 3]])), torch.zeros(1, 3, 8))


@pytest.mark.usefixtures("drop_all")
@pytest.mark.parametrize("activation", ["relu", "gated_gelu"])
def test_a_feed_forward_drops_its_inner_features(activation: str) -> None:
    part = FeedForward(ModelConfig(d_model=8, d_ff=24, activation=activation)).train()
    assert_close(part(torch.randn(2, 3, 8)), part.narrow.bias.expand(2, 3, 8))


@pytest.mark.usefixtures("drop_all")
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_residual_drops_what_the_sublayer_gives_and_keeps_what_it_got(norm: str) -> None:
    part, x = Residual(ModelConfig(d_model=8, heads=2, norm=norm)).train(), torch.randn(2, 3, 8)
    assert_close(part(x, lambda x: 2 * x), x if norm == "pre" else part.norm(x))


def seen_weights(layer: MultiHeadAttention, q: Tensor, k: Tensor) -> Tensor:
    """The weights that attention has used: with one-hot values and no projection they are its output."""
    with torch.no_grad():
        layer.project_out.weight.copy_(torch.eye(64))
    return layer.attend(q, k, torch.eye(64)[None, None], None)[0]


@pytest.mark.parametrize("fused_from", [64, 65], ids=["fused", "written out"])
def test_attention_drops_weights_one_by_one_and_scales_the_others(
    fused_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "FUSED_FROM_KEYS", fused_from)
    torch.manual_seed(0)
    layer = MultiHeadAttention(ModelConfig(d_model=64, heads=1, bias=False, attention_dropout=0.5))
    q, k = torch.randn(1, 1, 200, 64), torch.randn(1, 1, 64, 64)
    whole, dropped = seen_weights(layer.eval(), q, k), seen_weights(layer.train(), q, k)
    assert_close(whole.sum(-1), torch.ones(200))
    assert_close(dropped, torch.where(dropped == 0, 0.0, 2 * whole))
    assert (dropped == 0).float().mean().item() == pytest.approx(0.5, abs=0.02)
