"""Attention, smallest part first: masked softmax, three scores, many heads.

B batch   H heads   T queries   S keys   D d_model   d = D / H features of a head
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
        self.project_in = nn.Linear(config.d_model, 3 * config.d_model, bias=config.bias)
        self.project_out = nn.Linear(config.d_model, config.d_model, bias=config.bias)
        self.dropout = Dropout(config.attention_dropout)
        if config.score == "additive":
            self.additive = nn.Parameter(torch.empty(config.heads, config.d_model // config.heads))

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, D) -> three of (B, H, T, d)"""
        q, k, v = self.project_in(x).chunk(3, dim=-1)
        return split_heads(q, self.heads), split_heads(k, self.heads), split_heads(v, self.heads)

    def queries(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, d)"""
        weight, bias = self._rows(0, x.shape[-1])
        return split_heads(F.linear(x, weight, bias), self.heads)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, D) -> two of (B, H, S, d)"""
        weight, bias = self._rows(memory.shape[-1], 3 * memory.shape[-1])
        k, v = F.linear(memory, weight, bias).chunk(2, dim=-1)
        return split_heads(k, self.heads), split_heads(v, self.heads)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """(B, H, T, d), (B, H, S, d) -> (B, H, T, S)"""
        if self.score == "additive":
            return additive_score(q, k, self.additive)
        return dot_score(q, k) if self.score == "dot" else gaussian_score(q, k)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, weights: list[Tensor] | None = None
    ) -> Tensor:
        """q (B, H, T, d), k and v (B, H, S, d) -> (B, T, D); appends attention weights (B, H, T, S) to `weights`."""
        if self.score == "dot" and weights is None and k.shape[-2] >= FUSED_FROM_KEYS:
            p = self.dropout.p if self.training else 0.0
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        else:
            attention = masked_softmax(self.scores(q, k), mask)
            attended = self.dropout(attention) @ v  # (B, H, T, d)
            if weights is not None:
                weights.append(attention)
        projected: Tensor = self.project_out(join_heads(attended))
        return projected

    def _rows(self, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        bias = self.project_in.bias
        return self.project_in.weight[start:stop], None if bias is None else bias[start:stop]
