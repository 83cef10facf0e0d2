"""The int8 variant in torch, written out plainly: the oracle that the int8 graphs are compared with.

A matrix product reads levels of -127..127 with one scale for each token, its largest absolute value / 127. Its weights
are levels of -63..63, with a scale for each output. Keys and values that are cached in 8 bits are levels of -127..127
with a scale for each token and head. It shares no code with the graph builder; what both must agree on is written
twice.

Rounding amplifies: a value half way between two levels falls to either side by the last bit of f32, and then differs by
a whole level. So the oracle can follow a trace, the levels that a graph computed: it checks that each is its own value
rounded, and goes on with the graph's level. What is left between the two is f32 rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from attendant.model.attention import MultiHeadAttention, split_heads
from attendant.model.config import ModelConfig
from attendant.model.transformer import AttentionWeights, Transformer

SMALLEST_SCALE = 1e-8  # times the levels
SMALLEST_VALUE = 1e-30
LEVEL = 127
WEIGHT_LEVEL = 63
EXACT_IN_F32 = 2**24  # whole numbers up to here
AT_ONCE = 2**22  # elements of a weight that are converted at once


class Trace:
    """Levels that a graph computed, by quantizer, each (B, L, N), and how far the oracle's values are from them."""

    def __init__(self, levels: dict[str, Tensor], is_source: Tensor) -> None:
        self.levels, self.is_source = levels, is_source  # is_source (B, S): true at non-padding source positions
        self.distances: dict[str, tuple[float, list[int]]] = {}  # the largest, and where; in order of computation
        self.missing: list[str] = []

    def follow(self, name: str, value: Tensor, of_source: bool) -> Tensor:
        """value (B, L, N), in levels before rounding -> the graph's levels, without its additional padding"""
        found = self.levels.get(name)
        if found is not None and of_source:
            found = found[:, : value.shape[1]]
        if found is None or found.shape != value.shape:
            self.missing.append(name)
            return value.round()
        levels = found.to(value.dtype)
        if of_source:  # padded positions do not count
            levels = torch.where(self.is_source.unsqueeze(-1), levels, value.round())
        distance = (levels - value).abs().nan_to_num(nan=torch.inf)
        at = torch.unravel_index(distance.argmax(), distance.shape)
        self.distances[name] = (float(distance[at]), [int(i) for i in at])
        return levels

    def problems(self, slack: float) -> Iterator[str]:
        """Quantizers whose levels are not the oracle's values rounded, within `slack` levels."""
        for name in self.missing:
            yield f"{name} has no levels in the graph, or of another shape"
        for name in sorted(self.levels.keys() - self.distances.keys() - set(self.missing)):
            yield f"{name} has levels in the graph, and none in the int8 reference"
        for name, (distance, at) in self.distances.items():
            if not distance <= 0.5 + slack:
                yield f"{name} is {distance:.3g} levels from its value at {at}, and rounding explains 0.5"


class Quantizer(nn.Module):
    """Values (B, L, N) to levels, rounded half to even: one scale for each token, or for each token and head.

    The levels are the trace's, where there is one.
    """

    def __init__(self, name: str, heads: int = 1, of_source: bool = False) -> None:
        super().__init__()
        self.name, self.heads, self.of_source = name, heads, of_source
        self.trace: Trace | None = None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """-> levels (B, L, N), and scales that broadcast to them: (B, L, 1), or (B, L, N) with heads"""
        by_head = x.unflatten(-1, (self.heads, -1))
        largest = by_head.abs().amax(-1, keepdim=True).clamp(min=SMALLEST_VALUE)
        value = (by_head * (LEVEL / largest)).flatten(-2)
        levels = value.round() if self.trace is None else self.trace.follow(self.name, value, self.of_source)
        scale = largest / LEVEL
        return levels, scale.squeeze(-1) if self.heads == 1 else scale.expand_as(by_head).flatten(-2)


class Int8Linear(nn.Module):
    """x W^T + b in levels: one scale for each token of x, one for each output of W."""

    def __init__(self, name: str, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        self.quantize = Quantizer(name, of_source=name.startswith("encoder.") or name.endswith("keys_values"))
        self.levels, self.scale = quantize_rows(weight)
        largest_sum = weight.shape[1] * LEVEL * WEIGHT_LEVEL
        self.dtype = torch.float32 if largest_sum < EXACT_IN_F32 else torch.float64
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        levels, scale = self.quantize(x)
        levels = levels.to(self.dtype)
        parts = self.levels.split(max(1, AT_ONCE // self.levels.shape[1]))
        sums = torch.cat([levels @ part.to(self.dtype).T for part in parts], -1)  # whole numbers, exact in any order
        y: Tensor = sums.float() * (scale * self.scale)
        return y if self.bias is None else y + self.bias


class Int8Attention(MultiHeadAttention):
    """Multi-head attention with int8 projections, and with int8 keys and values where they are cached so."""

    def __init__(self, config: ModelConfig, name: str, original: MultiHeadAttention, int8_cache: bool) -> None:
        with torch.device("meta"):  # its own weights are replaced
            super().__init__(config)
        if config.score == "additive":
            self.additive = original.additive
        weight, bias = original.project_in.weight, original.project_in.bias

        def project_in(part: str, rows: slice) -> Int8Linear:
            used = None if bias is None else bias[rows]
            return Int8Linear(f"{name}.project_in.weight{part}", weight[rows], used)

        cross = name.endswith("cross_attention")
        del self.project_in
        if cross:
            self.project_queries = project_in(" queries", slice(config.inner))
            self.project_keys_values = project_in(" keys_values", slice(config.inner, None))
        else:
            self.project_all = project_in("", slice(None))
        out = original.project_out
        self.set_submodule("project_out", Int8Linear(f"{name}.project_out.weight", out.weight, out.bias))
        self.caches = nn.ModuleDict()
        if int8_cache:
            for side in ("key", "value"):
                self.caches[side] = Quantizer(f"{name} {side}", config.heads, of_source=cross)

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.project_all(x).chunk(3, dim=-1)
        return split_heads(q, self.heads), self._cache("key", k), self._cache("value", v)

    def queries(self, x: Tensor) -> Tensor:
        return split_heads(self.project_queries(x), self.heads)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self.project_keys_values(memory).chunk(2, dim=-1)
        return self._cache("key", k), self._cache("value", v)

    def _cache(self, side: str, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, d), as attention reads it from the cache"""
        if side in self.caches:
            levels, scale = self.caches[side](x)
            x = levels * scale
        return split_heads(x, self.heads)


class Int8Embedding(nn.Module):
    """Rows of a table in levels, times their scales."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.levels, self.scale = quantize_rows(weight.detach())

    def forward(self, ids: Tensor) -> Tensor:
        return self.levels[ids] * self.scale[ids].unsqueeze(-1)


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(out, in) -> int8 levels of the same shape, and the scale of each row"""
    levels, scales = torch.empty(weight.shape, dtype=torch.int8), []
    rows = max(1, AT_ONCE // weight.shape[1])
    for found, part in zip(levels.split(rows), weight.split(rows), strict=True):
        scale = part.abs().amax(1).clamp(min=SMALLEST_SCALE) / WEIGHT_LEVEL
        found.copy_((part / scale.unsqueeze(1)).round())
        scales.append(scale)
    return levels, torch.cat(scales)


def int8_reference(model: Transformer, int8_caches: bool) -> Transformer:
    """The model as its int8 graphs compute it; with int8 caches, as those of our own operators do.

    What stays in f32 is the model's own.
    """
    copied = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            int8_cache = int8_caches and name.startswith("decoder.")
            copied.set_submodule(name, Int8Attention(model.config, name, module, int8_cache))
        elif isinstance(module, nn.Embedding):
            copied.set_submodule(name, Int8Embedding(module.weight))
        elif isinstance(module, nn.Linear) and "attention" not in name:
            copied.set_submodule(name, Int8Linear(f"{name}.weight", module.weight, module.bias))
    return copied.eval()


@contextmanager
def following(reference: Transformer, trace: Trace | None) -> Iterator[None]:
    """Inside, a model that `int8_reference` made goes on with the levels of a trace, or without one on its own."""
    quantizers = [module for module in reference.modules() if isinstance(module, Quantizer)]
    try:
        for quantizer in quantizers:
            quantizer.trace = trace
        yield
    finally:
        for quantizer in quantizers:
            quantizer.trace = None


def follow(
    reference: Transformer, trace: Trace | None, source: Tensor, target: Tensor
) -> tuple[Tensor, AttentionWeights]:
    """Log-probabilities (B, T, V) and attention of a model that `int8_reference` made, along a trace or on its own."""
    weights = AttentionWeights()
    with following(reference, trace), torch.inference_mode():
        return reference(source, target, weights).log_softmax(-1), weights
