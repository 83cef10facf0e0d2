from __future__ import annotations

import math
import operator

import pytest
import torch
from torch import Tensor, tensor
from torch.testing import assert_close

from attendant.model import attention
from attendant.model.attention import (
    MultiHeadAttention,
    additive_score,
    dot_score,
    gaussian_score,
    join_heads,
    length_mask,
    masked_softmax,
    split_heads,
)
from attendant.model.config import ModelConfig


def test_kernel_regression_of_the_notes_answers_45_5() -> None:
    keys, values, query = tensor([[51.0], [56.0], [58.0]]), tensor([40.0, 43.0, 48.0]), tensor([[57.0]])
    weights = masked_softmax(gaussian_score(query, keys), None)[0]
    assert_close(weights, tensor([0.0, 0.5, 0.5]), atol=1e-6, rtol=0)
    assert_close(weights @ values, tensor(45.5), atol=1e-5, rtol=0)


def test_additive_attention_of_the_notes_is_the_mean_of_the_valid_values() -> None:
    """Keys that are all alike get equal weights, whatever the query and the projections."""
    torch.manual_seed(0)
    queries, keys = torch.randn(2, 1, 20), torch.ones(2, 10, 2)
    values = torch.arange(40.0).reshape(1, 10, 4).repeat(2, 1, 1)
    w_q, w_k, v = torch.randn(20, 8), torch.randn(2, 8), torch.randn(1, 8)
    scores = additive_score((queries @ w_q).unsqueeze(1), (keys @ w_k).unsqueeze(1), v).squeeze(1)  # (2, 1, 10)
    weights = masked_softmax(scores, length_mask(tensor([2, 6]), 10).unsqueeze(1))
    assert_close(weights @ values, tensor([[[2.0, 3.0, 4.0, 5.0]], [[10.0, 11.0, 12.0, 13.0]]]))
    assert_close(weights[0, 0, :3], tensor([0.5, 0.5, 0.0]))


# Keys, values and queries of the notes in two dimensions. The queries are theirs; keys and values are reconstructed by
# extending those of one dimension, so that the oracle is the formula and not a printed number.
BODIES = tensor([[51.0, 70.0], [56.0, 82.0], [58.0, 87.0]])
OUTCOMES = tensor([[40.0, 155.0], [43.0, 159.0], [48.0, 162.0]])


def kernel_regression(query: list[float], scale: float) -> list[float]:
    """sum of K(q - k) v / sum of K(q - k), with K(x) = exp(-|x|^2 / 2 / scale), in Python's own numbers."""
    kernels = [math.exp(-(math.dist(query, key) ** 2) / 2 / scale) for key in BODIES.tolist()]
    columns = zip(*OUTCOMES.tolist(), strict=True)
    return [sum(map(operator.mul, kernels, column)) / sum(kernels) for column in columns]


def test_kernel_regression_in_two_dimensions_is_its_formula() -> None:
    queries = tensor([[57.0, 83.0], [55.0, 76.0]])
    scores = gaussian_score(queries, BODIES)  # scaled by sqrt(2), as a dot product is
    expected = tensor([kernel_regression(query, math.sqrt(2)) for query in queries.tolist()])
    assert_close(masked_softmax(scores, None) @ OUTCOMES, expected, atol=1e-3, rtol=0)
    unscaled = tensor([kernel_regression(query, 1) for query in queries.tolist()])
    assert_close(masked_softmax(scores * math.sqrt(2), None) @ OUTCOMES, unscaled, atol=1e-3, rtol=0)
    assert not torch.allclose(expected, unscaled, atol=0.01, rtol=0)


# The worked example of the notes: three tokens of four features, W_Q and W_K; W_V is the identity.
X = tensor(
    [
        [1.0333236, -0.07687391, 1.94313157, -1.26162928],
        [1.18221604, -0.0298283, -1.46568319, 1.37369452],
        [-0.13959719, -0.50792964, -0.88052409, 1.52022357],
    ]
)
W_Q = tensor([[0.2, 0.1], [0.3, 0.5], [0.4, 0.6], [0.1, 0.2]])
W_K = tensor([[0.1, 0.3], [0.2, 0.4], [0.5, 0.7], [0.1, 0.2]])
Q = tensor([[0.83469225, 0.97844849], [-0.22140911, -0.50136356], [-0.38048561, -0.49219428]])
K = tensor([[0.93336044, 1.38711376], [-0.4832162, -0.40850584], [-0.40378534, -0.55737316]])


def test_queries_and_keys_of_the_notes_are_the_input_projected() -> None:
    layer = MultiHeadAttention(ModelConfig(d_model=4, heads=1, head_size=2, bias=False))
    with torch.no_grad():
        layer.project_in.weight[:4] = torch.cat([W_Q, W_K], dim=1).T
    q, k, _ = layer.queries_keys_values(X[None])
    assert_close(q[0, 0], Q, atol=5e-7, rtol=0)
    assert_close(k[0, 0], K, atol=5e-7, rtol=0)


def test_scaled_dot_product_of_the_notes() -> None:
    weights = masked_softmax(dot_score(Q, K), None)
    assert_close(
        weights, tensor([[0.804, 0.101, 0.095], [0.172, 0.406, 0.422], [0.153, 0.417, 0.430]]), atol=6e-4, rtol=0
    )
    expected = tensor([[0.937, -0.113, 1.331, -0.732], [0.598, -0.240, -0.632, 0.982], [0.591, -0.243, -0.694, 1.035]])
    assert_close(weights @ X, expected, atol=6e-4, rtol=0)


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [(tensor([[2], [3]]), [[2, 2], [3, 3]]), (tensor([[1, 3], [2, 4]]), [[1, 3], [2, 4]])],
    ids=["per example", "per query"],
)
def test_masked_softmax_of_the_notes_keeps_the_valid_columns(lengths: Tensor, kept: list[list[int]]) -> None:
    weights = masked_softmax(torch.rand(2, 2, 4), length_mask(lengths, 4))
    assert ((weights > 0).sum(-1)).tolist() == kept
    assert_close(weights.sum(-1), torch.ones(2, 2))
    for example in range(2):
        for query in range(2):
            assert (weights[example, query, kept[example][query] :] == 0).all()


def test_shapes_of_two_heads_on_three_tokens_of_the_notes() -> None:
    embeddings, w_q, w_k, w_v, w_o = (torch.rand(s) for s in [(3, 4), (4, 8), (4, 8), (4, 16), (16, 4)])
    q, k, v = (split_heads(embeddings @ w, heads=2) for w in (w_q, w_k, w_v))
    assert [x.shape for x in (q, k, v)] == [(2, 3, 4), (2, 3, 4), (2, 3, 8)]
    gathered = masked_softmax(dot_score(q, k), None) @ v
    assert gathered.shape == (2, 3, 8)
    assert join_heads(gathered).shape == (3, 16)
    assert (join_heads(gathered) @ w_o).shape == (3, 4)


def test_five_heads_of_the_notes_keep_the_shape_and_see_only_the_valid_keys() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(ModelConfig(d_model=100, heads=5)).eval()
    x, memory, mask = torch.randn(2, 4, 100), torch.randn(2, 6, 100), length_mask(tensor([3, 2]), 6)
    weights: list[Tensor] = []
    attended = layer.attend(layer.queries(x), *layer.keys_values(memory), mask[:, None, None], weights)
    assert attended.shape == (2, 4, 100)
    assert weights[0].shape == (2, 5, 4, 6)
    assert torch.equal(weights[0] > 0, mask[:, None, None].expand(2, 5, 4, 6))
    memory[~mask] += 1
    assert torch.equal(layer.attend(layer.queries(x), *layer.keys_values(memory), mask[:, None, None], []), attended)


def test_a_query_with_nothing_to_look_at_gets_no_weight_and_no_nan() -> None:
    weights = masked_softmax(torch.rand(1, 2, 3), tensor([[[False] * 3, [True] * 3]]))
    assert weights[0, 0].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("extreme", [1e4, -1e4])
def test_a_masked_key_gets_exactly_no_weight_whatever_its_score(extreme: float) -> None:
    weights = masked_softmax(tensor([[0.0, 1.0, extreme]]), tensor([[True, True, False]]))
    assert weights[0, 2] == 0


def test_the_scores_are_their_formulas() -> None:
    q, k, v = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4), torch.randn(2, 4)
    for t in range(3):
        for s in range(5):
            for h in range(2):
                a, b = q[0, h, t], k[0, h, s]
                assert_close(dot_score(q, k)[0, h, t, s], a @ b / 2)
                assert_close(gaussian_score(q, k)[0, h, t, s], -(a - b).square().sum() / 2 / 2)
                assert_close(additive_score(q, k, v)[0, h, t, s], v[h] @ torch.tanh(a + b))


def test_scaling_keeps_the_variance_of_the_scores_at_one() -> None:
    torch.manual_seed(0)
    for d in (4, 64, 1024):
        scores = dot_score(torch.randn(2000, d), torch.randn(2000, d))
        assert scores.var() == pytest.approx(1, abs=0.1)


def test_fused_attention_equals_the_products_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = MultiHeadAttention(ModelConfig(d_model=8, heads=2, attention_dropout=0.0)).eval()
    q, k, v = layer.queries_keys_values(torch.randn(2, 5, 8))
    mask = length_mask(tensor([5, 3]), 5)[:, None, None, :]
    written_out = layer.attend(q, k, v, mask)
    monkeypatch.setattr(attention, "FUSED_FROM_KEYS", 1)
    fused = layer.attend(q, k, v, mask)
    assert_close(fused, written_out)


def test_projecting_queries_and_keys_apart_equals_projecting_them_together() -> None:
    layer = MultiHeadAttention(ModelConfig(d_model=8, heads=2))
    x = torch.randn(2, 5, 8)
    q, k, v = layer.queries_keys_values(x)
    assert_close(layer.queries(x), q)
    assert_close(layer.keys_values(x), (k, v))
