"""Attention, smallest part first: masked softmax, three scores, many heads.

B batch   H heads   T queries   S keys   D d_model   d features of a head (D / H, unless head_size is given)
A mask is true at the keys that a query attends to, and broadcasts to (B, H, T, S).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attendant.model.config import ModelConfig
from attendant.model.dropout import Dropout

# Torch's fused kernel is used from this many keys on; with fewer, a training step is as fast with plain matrix products
# (docs/decisions/004-training-speed.md).
FUSED_FROM_KEYS = 48


def length_mask(lengths: Tensor, size: int) -> Tensor:
    """True for the first `lengths` of `size` positions: lengths (...) -> mask (..., size)."""
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(-1)


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the last axis; a masked position has weight exactly 0, so a fully masked row is all 0."""
    if mask is None:
        return scores.softmax(-1)
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
    return weights.masked_fill(~mask, 0.0)


def dot_score(q: Tensor, k: Tensor) -> Tensor:
    """q.k / sqrt(d): the division keeps the variance of the scores at 1, whatever d.

    (..., T, d), (..., S, d) -> (..., T, S)
    """
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


def additive_score(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """v.tanh(q + k), with q = W_q x and k = W_k x projected already.  v (H, d) -> (B, H, T, S)"""
    hidden = torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3))  # (B, H, T, S, d)
    return (hidden * v[:, None, None, :]).sum(-1)


def gaussian_score(q: Tensor, k: Tensor) -> Tensor:
    """-|q - k|^2 / 2, scaled like the dot product: attention as kernel regression.  -> (..., T, S)"""
    squares = q.square().sum(-1).unsqueeze(-1) + k.square().sum(-1).unsqueeze(-2)  # |q|^2 + |k|^2
    return (q @ k.transpose(-1, -2) - squares / 2) / math.sqrt(q.shape[-1])


def biased_mask(mask: Tensor | None, bias: Tensor | None, q: Tensor) -> Tensor | None:
    """What torch's fused kernel adds to the scores: the bias, and minus infinity at masked keys."""
    if bias is None:
        return mask
    bias = bias.to(q.dtype).unsqueeze(0)
    return bias if mask is None else bias.masked_fill(~mask, -math.inf)


def relative_buckets(distance: Tensor, buckets: int, largest: int, both_sides: bool) -> Tensor:
    """T5's bucket of each distance (key's position - query's), whole numbers below `buckets`.

    The first half of the buckets is of single distances, the rest of ranges that grow up to `largest`, beyond which all
    are the last bucket's. With `both_sides`, later keys have one half of the buckets and earlier ones the other; else
    later keys are counted as the query's own position.
    """
    if both_sides:
        buckets //= 2
    away = distance.abs() if both_sides else (-distance).clamp(min=0)
    single = buckets // 2
    growth = torch.log(away.float() / single) / math.log(largest / single)
    ranges = (single + (growth * (buckets - single)).clamp(min=0).long()).clamp(max=buckets - 1)
    bucket = torch.where(away < single, away, ranges)
    return bucket + buckets * (distance > 0) if both_sides else bucket


class RelativeBias(nn.Module):
    """T5's relative positions: a number for each head and distance, added to the scores of all layers of a stack."""

    def __init__(self, config: ModelConfig, both_sides: bool) -> None:
        super().__init__()
        self.both_sides, self.largest = both_sides, config.relative_distance
        self.table = nn.Parameter(torch.empty(config.relative_buckets, config.heads))

    def of_distances(self, distance: Tensor) -> Tensor:
        """distance (...), key's position - query's -> (H, ...)"""
        bucket = relative_buckets(distance, len(self.table), self.largest, self.both_sides)
        return self.table[bucket].movedim(-1, 0)

    def forward(self, queries: int, past: int = 0) -> Tensor:
        """The bias of queries at positions past, past + 1, ... for the keys up to the last of them: (H, T, S)"""
        position = torch.arange(past + queries, device=self.table.device)
        return self.of_distances(position - position[past:, None])


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(..., T, H d) -> (..., H, T, d)"""
    return torch.unflatten(x, -1, (heads, -1)).transpose(-3, -2)


def join_heads(x: Tensor) -> Tensor:
    """(..., H, T, d) -> (..., T, H d)"""
    return x.transpose(-3, -2).flatten(-2)


class MultiHeadAttention(nn.Module):
    """softmax(score(Q W_Q, K W_K)) V W_V for each of H heads, concatenated and projected by W_O.

    W_Q, W_K and W_V are stacked in one matrix, so that self-attention projects all three in one product.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.score = config.score
        self.inner = config.inner  # H d
        self.project_in = nn.Linear(config.d_model, 3 * self.inner, bias=config.bias)
        self.project_out = nn.Linear(self.inner, config.d_model, bias=config.bias)
        self.dropout = Dropout(config.attention_dropout)
        if config.score == "additive":
            self.additive = nn.Parameter(torch.empty(config.heads, config.head))

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, D) -> three of (B, H, T, d)"""
        q, k, v = self.project_in(x).chunk(3, dim=-1)
        return split_heads(q, self.heads), split_heads(k, self.heads), split_heads(v, self.heads)

    def queries(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, d)"""
        weight, bias = self._rows(0, self.inner)
        return split_heads(F.linear(x, weight, bias), self.heads)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, D) -> two of (B, H, S, d)"""
        weight, bias = self._rows(self.inner, 3 * self.inner)
        k, v = F.linear(memory, weight, bias).chunk(2, dim=-1)
        return split_heads(k, self.heads), split_heads(v, self.heads)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """(B, H, T, d), (B, H, S, d) -> (B, H, T, S)"""
        if self.score == "additive":
            return additive_score(q, k, self.additive)
        return dot_score(q, k) if self.score == "dot" else gaussian_score(q, k)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        weights: list[Tensor] | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """q (B, H, T, d), k and v (B, H, S, d) -> (B, T, D); appends attention weights (B, H, T, S) to `weights`.

        `bias` (H, T, S) is added to the scores.
        """
        if self.score == "dot" and weights is None and k.shape[-2] >= FUSED_FROM_KEYS:
            p = self.dropout.p if self.training else 0.0
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=biased_mask(mask, bias, q), dropout_p=p)
        else:
            scores = self.scores(q, k) if bias is None else self.scores(q, k) + bias
            attention = masked_softmax(scores, mask)
            attended = self.dropout(attention) @ v  # (B, H, T, d)
            if weights is not None:
                weights.append(attention)
        projected: Tensor = self.project_out(join_heads(attended))
        return projected

    def _rows(self, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        bias = self.project_in.bias
        return self.project_in.weight[start:stop], None if bias is None else bias[start:stop]
