"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017), smallest part first.

B batch   S source tokens   T target tokens   D d_model   H heads   d features of a head   V target vocabulary
Source and target ids are right-padded with PAD; a target begins with BOS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attendant.model.attention import MultiHeadAttention, RelativeBias
from attendant.model.config import ModelConfig
from attendant.model.dropout import Dropout
from attendant.model.text.tokenizer import EOS, PAD

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "gated_gelu": partial(F.gelu, approximate="tanh"),
    "gated_silu": F.silu,
}
RMS_EPSILON = 1e-6  # T5's


def make_norm(config: ModelConfig) -> nn.Module:
    """LayerNorm, or with norm_kind=rms x / sqrt(mean(x^2) + epsilon) times a weight."""
    if config.norm_kind == "rms":
        return nn.RMSNorm(config.d_model, eps=RMS_EPSILON)
    return nn.LayerNorm(config.d_model, bias=config.bias)


def sinusoids(length: int, d_model: int) -> Tensor:
    """PE[pos, 2i] = sin(pos / 10000^(2i/D)), PE[pos, 2i+1] = cos of the same.  -> (length, D), on the CPU"""
    position = torch.arange(length, dtype=torch.float64, device="cpu").unsqueeze(1)  # also of a model built on "meta"
    wavelength = 10000.0 ** (torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu") / d_model)
    angle = position / wavelength  # (length, D / 2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).float()


class Embedding(nn.Module):
    """Token embeddings times sqrt(D), plus positions unless relative; with embedding_norm, the norm of that."""

    def __init__(self, config: ModelConfig, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, config.d_model)
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.norm = make_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)
        if config.positions == "learned":
            self.positions = nn.Parameter(torch.empty(config.max_length, config.d_model))
        else:
            table = sinusoids(config.max_length, config.d_model) if config.positions == "sinusoidal" else None
            self.register_buffer("positions", table, persistent=False)

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """ids (B, T) at positions start, start + 1, ... -> (B, T, D)"""
        x = self.tokens(ids) * self.scale
        if self.positions is not None:
            x = x + self.positions[start : start + ids.shape[1]]
        embedded: Tensor = self.dropout(self.norm(x))
        return embedded


class FeedForward(nn.Module):
    """activation(x W1 + b1) W2 + b2 at each position; gated, (activation(x W1 + b1) * (x U + c)) W2 + b2.

    W1 and U are stacked in one matrix.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gated = config.gated
        self.widen = nn.Linear(config.d_model, config.widened, bias=config.bias)
        self.narrow = nn.Linear(config.d_ff, config.d_model, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = Dropout(config.ff_dropout)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            wide, gate = self.widen(x).chunk(2, dim=-1)
            wide = self.activation(wide) * gate
        else:
            wide = self.activation(self.widen(x))
        y: Tensor = self.narrow(self.dropout(wide))
        return y


class Residual(nn.Module):
    """Wraps a sub-layer f: norm(x + Dropout(f(x))), or with norm=pre, x + Dropout(f(norm(x)))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = make_norm(config)
        self.dropout = Dropout(config.dropout)
        self.pre = config.norm == "pre"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """x (B, T, D) and f -> (B, T, D)"""
        if self.pre:
            y: Tensor = x + self.dropout(sublayer(self.norm(x)))
        else:
            y = self.norm(x + self.dropout(sublayer(x)))
        return y


class EncoderLayer(nn.Module):
    """Self-attention, feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.self_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_residual = Residual(config)

    def forward(
        self, x: Tensor, mask: Tensor | None, weights: list[Tensor] | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """x (B, S, D) -> (B, S, D); appends the layer's attention weights to `weights`. bias (H, S, S) of scores."""

        def attend(x: Tensor) -> Tensor:
            q, k, v = self.self_attention.queries_keys_values(x)
            return self.self_attention.attend(q, k, v, mask, weights, bias)

        x = self.self_residual(x, attend)
        y: Tensor = self.feed_residual(x, self.feed_forward)
        return y


@dataclass
class LayerCache:
    """Keys and values of one decoder layer: cross (B, H, S, d), self (B, H, T, d) or None before the first token."""

    cross_k: Tensor
    cross_v: Tensor
    self_k: Tensor | None = None
    self_v: Tensor | None = None

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.self_k = k if self.self_k is None else torch.cat([self.self_k, k], dim=2)
        self.self_v = v if self.self_v is None else torch.cat([self.self_v, v], dim=2)
        return self.self_k, self.self_v

    def reorder(self, rows: Tensor) -> None:
        """Row i takes the contents of row rows[i], as beam search needs after each step."""
        for name in ("cross_k", "cross_v", "self_k", "self_v"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else value[rows])


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the encoder, feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.self_residual = Residual(config)
        self.cross_attention = MultiHeadAttention(config)
        self.cross_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_residual = Residual(config)

    def forward(
        self,
        x: Tensor,
        cache: LayerCache,
        mask: Tensor | None,
        source_mask: Tensor | None,
        self_weights: list[Tensor] | None = None,
        cross_weights: list[Tensor] | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """x (B, T, D) -> (B, T, D); the cache grows by T positions, the lists by the layer's attention weights.

        bias (H, T, past + T) of the scores of self-attention; attention to the encoder has none.
        """

        def attend_target(x: Tensor) -> Tensor:
            q, k, v = self.self_attention.queries_keys_values(x)
            k, v = cache.extend(k, v)
            return self.self_attention.attend(q, k, v, mask, self_weights, bias)

        def attend_source(x: Tensor) -> Tensor:
            q = self.cross_attention.queries(x)
            return self.cross_attention.attend(q, cache.cross_k, cache.cross_v, source_mask, cross_weights)

        x = self.self_residual(x, attend_target)
        x = self.cross_residual(x, attend_source)
        y: Tensor = self.feed_residual(x, self.feed_forward)
        return y


@dataclass
class Cache:
    """The decoding cache of a batch: a LayerCache per layer, the source mask, the number of tokens decoded so far."""

    layers: list[LayerCache]
    source_mask: Tensor | None
    length: int = 0

    def reorder(self, rows: Tensor) -> None:
        for layer in self.layers:
            layer.reorder(rows)
        self.source_mask = None if self.source_mask is None else self.source_mask[rows]


@dataclass
class AttentionWeights:
    """Attention weights of a forward pass: (B, H, queries, keys) for each layer."""

    encoder: list[Tensor] = field(default_factory=list)
    decoder: list[Tensor] = field(default_factory=list)
    cross: list[Tensor] = field(default_factory=list)


class Transformer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config.validate()
        self.source_embedding = Embedding(config, config.source_vocab)
        self.target_embedding = Embedding(config, config.target_vocab)
        relative = config.positions == "relative"
        self.encoder_bias = RelativeBias(config, both_sides=True) if relative else None
        self.decoder_bias = RelativeBias(config, both_sides=False) if relative else None
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        # Pre-norm leaves the last residual sum unnormalised, so each stack ends with a norm of its own.
        final = config.norm == "pre" or config.final_norm
        self.encoder_norm = make_norm(config) if final else nn.Identity()
        self.decoder_norm = make_norm(config) if final else nn.Identity()
        self.output = nn.Linear(config.d_model, config.target_vocab, bias=config.output_bias)
        if config.tied in ("two", "three"):
            self.output.weight = self.target_embedding.tokens.weight
        if config.tied in ("three", "embeddings"):
            self.source_embedding.tokens.weight = self.target_embedding.tokens.weight
        self._initialise()

    def forward(self, source: Tensor, target: Tensor, weights: AttentionWeights | None = None) -> Tensor:
        """Logits of the token after each target position: source (B, S), target (B, T) -> (B, T, V)"""
        mask = self.source_mask(source)
        memory = self.encode(source, mask, weights)
        return self.decode(target, self.start(memory, mask), weights)

    def source_mask(self, source: Tensor) -> Tensor | None:
        """Mask: true at the source positions that attention sees, (B, S) -> (B, 1, 1, S); None where it sees all."""
        if self.config.source_end:
            return padding_mask(source)
        seen = (source != PAD) & (source != EOS)
        seen[:, 0] = True  # a softmax over nothing is not defined
        return seen[:, None, None, :]

    def encode(self, source: Tensor, mask: Tensor | None, weights: AttentionWeights | None = None) -> Tensor:
        """source (B, S) -> memory (B, S, D)"""
        x = self.source_embedding(source)
        bias = None if self.encoder_bias is None else self.encoder_bias(source.shape[1])
        for layer in self.encoder:
            x = layer(x, mask, None if weights is None else weights.encoder, bias)
        memory: Tensor = self.encoder_norm(x)
        return memory

    def start(self, memory: Tensor, source_mask: Tensor | None) -> Cache:
        """A cache with the cross-attention keys and values of every layer, and no target token yet."""
        layers = cast("Iterable[DecoderLayer]", self.decoder)  # a ModuleList's items have no type of their own
        return Cache([LayerCache(*layer.cross_attention.keys_values(memory)) for layer in layers], source_mask)

    def decode(self, target: Tensor, cache: Cache, weights: AttentionWeights | None = None) -> Tensor:
        """Decode the next T tokens and add them to the cache: target (B, T) -> logits (B, T, V)

        Padding needs no mask here: it is on the right, and the causal mask hides it from every real position.
        """
        x = self.target_embedding(target, cache.length)
        mask = causal_mask(target.shape[1], cache.length, target.device)
        bias = None if self.decoder_bias is None else self.decoder_bias(target.shape[1], cache.length)
        for layer, layer_cache in zip(self.decoder, cache.layers, strict=True):
            lists = (None, None) if weights is None else (weights.decoder, weights.cross)
            x = layer(x, layer_cache, mask, cache.source_mask, *lists, bias)
        cache.length += target.shape[1]
        logits: Tensor = self.output(self.decoder_norm(x))
        return logits

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())  # a tied matrix is one parameter, counted once

    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith(("tokens.weight", "positions", "bias.table")) or name == "output.weight":
                nn.init.normal_(parameter, std=self.config.d_model**-0.5)
            elif name.endswith(("project_in.weight", "widen.weight")):
                parts = 3 if name.endswith("project_in.weight") else 2 if self.config.gated else 1
                for part in parameter.chunk(parts):  # W_Q, W_K and W_V are three matrices in one, W1 and U two
                    nn.init.xavier_uniform_(part)
            elif parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


def padding_mask(ids: Tensor) -> Tensor | None:
    """Mask: true at non-padding source positions, (B, S) -> (B, 1, 1, S); None where nothing is padded."""
    real = ids != PAD
    return None if bool(real.all()) else real[:, None, None, :]


def causal_mask(length: int, past: int, device: torch.device) -> Tensor | None:
    """Mask: true at a query's own position and those before.  -> (length, past + length); None for one query."""
    if length == 1:
        return None
    return torch.ones(length, past + length, dtype=torch.bool, device=device).tril(past)
