from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, tensor
from torch.testing import assert_close

from attendant.model.config import ModelConfig
from attendant.model.text.tokenizer import BOS, EOS, PAD
from attendant.model.transformer import AttentionWeights, FeedForward, Residual, padding_mask, sinusoids
from tests.support.small_models import FOREIGN, make_foreign_model, make_model

SOURCE = tensor([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD]])
TARGET = tensor([[BOS, 5, 6, 7], [BOS, 8, 9, 10]])
GRID = list(
    itertools.product(
        ("dot", "additive", "gaussian"), ("sinusoidal", "learned"), ("post", "pre"), ("relu", "gelu", "silu")
    )
)


def test_sinusoids_of_the_notes() -> None:
    encoding = sinusoids(5, 4)
    assert_close(encoding[0], tensor([0.0, 1.0, 0.0, 1.0]))
    assert_close(encoding[4], tensor([-0.7568, -0.6536, 0.03999, 0.9992]), atol=5e-5, rtol=0)
    token = tensor([1.0, 0.5, 0.8, 0.3])
    assert_close(token + encoding[0], tensor([1.0, 1.5, 0.8, 1.3]))
    assert_close(token + encoding[4], tensor([0.2432, -0.1536, 0.83999, 1.2992]), atol=5e-5, rtol=0)


@pytest.mark.parametrize("delta", [1, 7, 30])
def test_a_later_position_is_a_rotation_that_does_not_depend_on_where_one_starts(delta: int) -> None:
    d_model = 16
    pairs = sinusoids(100, d_model).double().unflatten(1, (-1, 2))  # (100, D / 2, sin and cos)
    angle = delta / 10000 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    rotation = torch.stack([angle.cos(), angle.sin(), -angle.sin(), angle.cos()], dim=-1).unflatten(1, (2, 2))
    rotated = torch.einsum("iab,pib->pia", rotation, pairs[:-delta])
    assert_close(rotated, pairs[delta:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("d_model", [4, 16, 512])
def test_every_position_has_a_code_of_its_own_between_minus_one_and_one(d_model: int) -> None:
    codes = sinusoids(512, d_model).double()
    assert codes.abs().max() <= 1
    assert codes.unique(dim=0).shape == codes.shape
    assert_close(codes.square().sum(-1), torch.full((512,), d_model / 2, dtype=torch.float64), atol=1e-4, rtol=0)


def test_a_code_depends_on_its_position_alone() -> None:
    torch.manual_seed(1)
    first = make_model(seed=1).source_embedding.positions
    second = make_model(seed=2, max_length=20, tie="none").target_embedding.positions
    assert torch.equal(first[:20], second)
    assert torch.equal(first, sinusoids(64, 16))


def test_learned_positions_are_trained_where_they_were_used_and_nowhere_else() -> None:
    model = make_model(positions="learned")
    model(SOURCE, TARGET).sum().backward()
    for part, length in ((model.source_embedding, SOURCE.shape[1]), (model.target_embedding, TARGET.shape[1])):
        trained = part.positions.grad.abs().sum(-1) > 0
        assert trained.nonzero().flatten().tolist() == list(range(length))


def permuted_memory(model: torch.nn.Module, order: Tensor) -> tuple[Tensor, Tensor]:
    source = tensor([[5, 6, 7, 8, 9, EOS]])
    memory = model.encode(source, None)
    return memory[:, order], model.encode(source[:, order], None)


def test_without_positions_a_permuted_input_gives_the_permuted_output() -> None:
    model = make_model()
    model.source_embedding.positions.zero_()
    permuted, of_permuted = permuted_memory(model, tensor([3, 0, 5, 1, 4, 2]))
    assert_close(of_permuted, permuted)


def test_with_positions_a_permuted_input_does_not_give_the_permuted_output() -> None:
    permuted, of_permuted = permuted_memory(make_model(), tensor([3, 0, 5, 1, 4, 2]))
    assert (of_permuted - permuted).abs().max() > 0.01


@pytest.mark.parametrize(("score", "positions", "norm", "activation"), GRID)
def test_decoding_with_a_cache_equals_the_full_pass(score: str, positions: str, norm: str, activation: str) -> None:
    model = make_model(score=score, positions=positions, norm=norm, activation=activation)
    full = model(SOURCE, TARGET)
    mask = padding_mask(SOURCE)
    cache = model.start(model.encode(SOURCE, mask), mask)
    steps = [model.decode(TARGET[:, i : i + 1], cache) for i in range(TARGET.shape[1])]
    assert_close(torch.cat(steps, dim=1), full, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("changes", FOREIGN, ids=str)
def test_with_foreign_parts_a_cache_equals_the_full_pass(changes: dict[str, object]) -> None:
    model = make_foreign_model(**changes)
    mask = model.source_mask(SOURCE)
    cache = model.start(model.encode(SOURCE, mask), mask)
    steps = [model.decode(TARGET[:, i : i + 1], cache) for i in range(TARGET.shape[1])]
    assert_close(torch.cat(steps, dim=1), model(SOURCE, TARGET), atol=1e-5, rtol=1e-5)


def test_an_output_bias_is_added_to_the_logits() -> None:
    model = make_model(output_bias=True)
    before = model(SOURCE, TARGET)
    with torch.no_grad():
        model.output.bias[7] += 2.5
    assert_close(model(SOURCE, TARGET) - before, 2.5 * torch.eye(11)[7].expand(2, 4, 11), atol=1e-5, rtol=0)


def test_an_embedding_is_its_formula() -> None:
    model = make_foreign_model(embedding_norm=True, scale_embeddings=False, positions="learned")
    part = model.source_embedding
    assert_close(part(SOURCE), part.norm(part.tokens(SOURCE) + part.positions[: SOURCE.shape[1]]))


def test_an_embedding_is_a_row_of_its_matrix_as_a_one_hot_product_gives_it() -> None:
    part = make_model().source_embedding
    one_hot = torch.nn.functional.one_hot(SOURCE, 13).float()  # (B, S, V)
    assert_close(part(SOURCE), one_hot @ part.tokens.weight * 16**0.5 + sinusoids(5, 16))


@pytest.mark.parametrize("d_model", [16, 256])
def test_scaled_embeddings_have_features_of_size_one_whatever_d_model(d_model: int) -> None:
    """Which is that of the positions' to a factor of sqrt(2); unscaled they are sqrt(d_model) times smaller."""
    for scaled, size in ((True, 1.0), (False, d_model**-0.5)):
        model = make_model(d_model=d_model, source_vocab=2000, scale_embeddings=scaled)
        ids = torch.arange(2000).reshape(50, 40)
        tokens = model.source_embedding(ids) - sinusoids(40, d_model)
        assert tokens.square().mean().sqrt().item() == pytest.approx(size, rel=0.05)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_the_feed_forward_is_two_convolutions_of_width_one(activation: str) -> None:
    layer = FeedForward(ModelConfig(d_model=8, d_ff=24, activation=activation)).eval()
    widen, narrow = torch.nn.Conv1d(8, 24, 1), torch.nn.Conv1d(24, 8, 1)
    with torch.no_grad():
        for convolution, linear in ((widen, layer.widen), (narrow, layer.narrow)):
            convolution.weight.copy_(linear.weight[:, :, None])
            convolution.bias.copy_(linear.bias)
    x = torch.randn(2, 5, 8)
    assert_close(layer(x), narrow(layer.activation(widen(x.mT))).mT)


def test_a_final_norm_is_applied_to_the_output_of_each_stack() -> None:
    model = make_foreign_model(final_norm=True)
    memory, norm = model.encode(SOURCE, None), model.encoder_norm
    model.encoder_norm = torch.nn.Identity()
    assert_close(memory, norm(model.encode(SOURCE, None)))


def test_decoding_in_pieces_of_several_tokens_equals_the_full_pass() -> None:
    model = make_model()
    mask = padding_mask(SOURCE)
    cache = model.start(model.encode(SOURCE, mask), mask)
    pieces = [model.decode(TARGET[:, :3], cache), model.decode(TARGET[:, 3:], cache)]
    assert_close(torch.cat(pieces, dim=1), model(SOURCE, TARGET), atol=1e-5, rtol=1e-5)


def test_a_reordered_cache_decodes_the_rows_it_was_given() -> None:
    model = make_model()
    rows = tensor([1, 1, 0])
    mask = padding_mask(SOURCE)
    cache = model.start(model.encode(SOURCE, mask), mask)
    model.decode(TARGET[:, :2], cache)
    cache.reorder(rows)
    after = model.decode(TARGET[rows, 2:3], cache)
    assert_close(after, model(SOURCE, TARGET)[rows, 2:3], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("score", ["dot", "additive", "gaussian"])
def test_a_future_token_cannot_change_the_past(score: str) -> None:
    model = make_model(score=score)
    changed = TARGET.clone()
    changed[:, 2] = 4
    before, after = model(SOURCE, TARGET), model(SOURCE, changed)
    assert torch.equal(before[:, :2], after[:, :2])
    assert not torch.equal(before[:, 2:], after[:, 2:])


@pytest.mark.parametrize("score", ["dot", "additive", "gaussian"])
def test_padding_cannot_change_anything(score: str) -> None:
    model = make_model(score=score)
    alone = model(SOURCE[1:, :3], TARGET[1:])
    padded = model(SOURCE, TARGET)[1:]
    assert_close(padded, alone, atol=1e-5, rtol=1e-5)
    weights = AttentionWeights()
    model(SOURCE, TARGET, weights)
    assert all((layer[1, :, :, 3:] == 0).all() for layer in weights.encoder + weights.cross)


@pytest.mark.parametrize(
    ("tie", "shared", "matrices"),
    [
        ("three", True, 1),
        ("two", False, 2),
        ("two", True, 2),
        ("none", False, 3),
        ("auto", True, 1),
        ("auto", False, 2),
    ],
)
def test_tying_really_ties(tie: str, shared: bool, matrices: int) -> None:
    model = make_model(tie=tie, shared_vocab=shared, source_vocab=11)
    addresses = {
        m.weight.data_ptr() for m in (model.source_embedding.tokens, model.target_embedding.tokens, model.output)
    }
    assert len(addresses) == matrices
    names = [name for name, _ in model.named_parameters() if "tokens" in name or name == "output.weight"]
    assert len(names) == matrices
    model(SOURCE, TARGET).sum().backward()
    if matrices == 1:
        assert model.source_embedding.tokens.weight.grad is model.output.weight.grad


def test_attention_weights_are_given_when_asked_for_and_change_nothing() -> None:
    model = make_model(heads=4, encoder_layers=3)
    weights = AttentionWeights()
    assert_close(model(SOURCE, TARGET, weights), model(SOURCE, TARGET))
    assert [w.shape for w in weights.encoder] == [(2, 4, 5, 5)] * 3
    assert [w.shape for w in weights.decoder] == [(2, 4, 4, 4)] * 2
    assert [w.shape for w in weights.cross] == [(2, 4, 4, 5)] * 2
    for layer in weights.encoder + weights.decoder + weights.cross:
        assert_close(layer.sum(-1), torch.ones(layer.shape[:-1]))
    assert all((layer.triu(1) == 0).all() for layer in weights.decoder)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_model_without_biases_has_none_and_runs(norm: str) -> None:
    model = make_model(bias=False, norm=norm)
    assert not [name for name, _ in model.named_parameters() if name.endswith("bias")]
    assert model(SOURCE, TARGET).isfinite().all()


@pytest.mark.parametrize(("heads", "encoder_layers", "decoder_layers"), [(1, 1, 1), (16, 1, 3), (8, 4, 1)])
def test_any_depth_and_head_count_runs(heads: int, encoder_layers: int, decoder_layers: int) -> None:
    model = make_model(heads=heads, encoder_layers=encoder_layers, decoder_layers=decoder_layers)
    assert model(SOURCE, TARGET).shape == (2, 4, 11)


def test_every_norm_of_a_model_uses_the_biased_variance() -> None:
    norms = [module for module in make_model(norm="pre").modules() if isinstance(module, torch.nn.LayerNorm)]
    assert len(norms) == 2 * 2 + 2 * 3 + 2  # of two layers each of the encoder and the decoder, and their ends
    x = tensor([1.0, 2.0, 3.0, 6.0] * 4)
    for norm in norms:
        assert_close(norm(x), (x - 3) / (3.5 + 1e-5) ** 0.5)


def test_the_unbiased_deviation_of_a_sketch_gives_smaller_numbers_than_a_norm() -> None:
    x = tensor([140.0, 150.0, 160.0, 170.0, 180.0])
    sketch = (x - x.mean()) / x.std()  # torch divides by n - 1 here, LayerNorm by n
    norm = torch.nn.LayerNorm(5)(x)
    assert_close(sketch, norm * (4 / 5) ** 0.5)
    assert_close(norm, tensor([-(2**0.5), -(0.5**0.5), 0.0, 0.5**0.5, 2**0.5]))


def test_the_papers_base_model_has_its_parameters() -> None:
    from attendant.model.config import ModelConfig
    from attendant.model.transformer import Transformer

    with torch.device("meta"):
        base = Transformer(ModelConfig(source_vocab=37000, target_vocab=37000, shared_vocab=True))
    assert base.parameter_count() == pytest.approx(65e6, rel=0.05)  # table 3 of the paper, vocabulary 37,000


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_residual_is_its_formula(norm: str) -> None:
    residual = Residual(ModelConfig(d_model=8, heads=2, norm=norm)).eval()
    x, double = torch.randn(2, 3, 8), lambda x: 2 * x
    layer_norm = residual.norm
    expected = x + double(layer_norm(x)) if norm == "pre" else layer_norm(x + double(x))
    assert_close(residual(x, double), expected)


@torch.no_grad()
def test_without_source_end_nothing_depends_on_the_end_token_of_a_source() -> None:
    model = make_model(source_end=False)
    source, target = torch.tensor([[5, 6, 7, EOS, PAD], [8, EOS, PAD, PAD, PAD]]), torch.tensor([[2, 4, 5]] * 2)
    before, with_end = model(source, target), make_model()(source, target)
    model.source_embedding.tokens.weight[EOS] = 9.0
    assert torch.equal(model(source, target), before)
    assert not torch.allclose(with_end, before, atol=1e-3)
