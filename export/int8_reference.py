"""The int8 variant in torch, written out plainly: the oracle that the int8 graphs are compared with.

A matrix product reads levels of 0..255: round(x / scale) + zero point, by the ranges in the manifest. Its weights are
levels of -63..63, with a scale for each output. Keys and values that are cached in 8 bits are levels of -128..127, with
a scale for each channel. It shares no code with the graph builder; what both must agree on is written twice.

Rounding amplifies: a value half way between two levels falls to either side by the last bit of f32, and then differs by
a whole level. So the oracle can follow a trace, the levels that a graph computed: it checks that each is its own value
rounded, and goes on with the graph's level. What is left between the two is f32 rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from model.attention import MultiHeadAttention, split_heads
from model.config import ModelConfig
from model.transformer import AttentionWeights, Transformer

Calibration = Mapping[str, Mapping[str, Any]]  # product: low, high and cached, as in the manifest

SMALLEST_SCALE = 1e-8
ACTIVATION_LEVELS = (0, 255)
WEIGHT_LEVEL = 63
CACHE_LEVELS = (-128, 127)
CACHE_HEADROOM = 1.1
EXACT_IN_F32 = 2**24  # whole numbers up to here


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


class Quantizer(nn.Module):  # type: ignore[misc]
    """Values (B, L, N) to levels, rounded half to even and cut to the range; by the trace, where there is one."""

    def __init__(
        self, name: str, scale: Tensor, zero_point: int, limits: tuple[int, int], of_source: bool = False
    ) -> None:
        super().__init__()
        self.name, self.scale, self.zero_point, self.limits = name, scale, zero_point, limits
        self.of_source = of_source
        self.trace: Trace | None = None

    def forward(self, x: Tensor) -> Tensor:
        """-> levels, less the zero point"""
        value = (x / self.scale + self.zero_point).clamp(*self.limits)
        levels = value.round() if self.trace is None else self.trace.follow(self.name, value, self.of_source)
        return levels - self.zero_point


class Int8Linear(nn.Module):  # type: ignore[misc]
    """x W^T + b in levels: one scale for x, one for each output of W."""

    def __init__(self, name: str, weight: Tensor, bias: Tensor | None, calibration: Calibration) -> None:
        super().__init__()
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        low, high = min(calibration[name]["low"], 0.0), max(calibration[name]["high"], 0.0)
        scale = max(high - low, SMALLEST_SCALE) / ACTIVATION_LEVELS[1]
        of_source = name.startswith("encoder.") or name.endswith("keys_values")
        self.quantize = Quantizer(name, torch.tensor(scale), round(-low / scale), ACTIVATION_LEVELS, of_source)
        levels, self.scale = quantize_rows(weight)
        largest_sum = weight.shape[1] * ACTIVATION_LEVELS[1] * WEIGHT_LEVEL
        self.levels = levels if largest_sum < EXACT_IN_F32 else levels.double()
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        sums = self.quantize(x).to(self.levels.dtype) @ self.levels.T  # whole numbers, exact in any order
        y = sums.float() * (self.quantize.scale * self.scale)
        return y if self.bias is None else y + self.bias


class Int8Attention(MultiHeadAttention):  # type: ignore[misc]
    """Multi-head attention with int8 projections, and with int8 keys and values where they are cached so."""

    def __init__(
        self, config: ModelConfig, name: str, original: MultiHeadAttention, calibration: Calibration, int8_cache: bool
    ) -> None:
        super().__init__(config)
        if config.score == "additive":
            self.additive = original.additive
        weight, bias = original.project_in.weight, original.project_in.bias

        def project_in(part: str, rows: slice) -> Int8Linear:
            used = None if bias is None else bias[rows]
            return Int8Linear(f"{name}.project_in.weight{part}", weight[rows], used, calibration)

        cross = name.endswith("cross_attention")
        cached = f"{name}.project_in.weight" + (" keys_values" if cross else "")
        del self.project_in
        if cross:
            self.project_queries = project_in(" queries", slice(config.d_model))
            self.project_keys_values = project_in(" keys_values", slice(config.d_model, None))
        else:
            self.project_all = project_in("", slice(None))
        out = original.project_out
        self.set_submodule("project_out", Int8Linear(f"{name}.project_out.weight", out.weight, out.bias, calibration))
        self.caches = nn.ModuleDict()
        if int8_cache:
            largest = torch.tensor(calibration[cached]["cached"], dtype=torch.float64)
            scales = (CACHE_HEADROOM * largest / CACHE_LEVELS[1]).clamp(min=SMALLEST_SCALE).float()
            for side, scale in zip(("key", "value"), scales.chunk(2), strict=True):
                self.caches[side] = Quantizer(f"{name} {side}", scale, 0, CACHE_LEVELS, of_source=cross)

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
            quantize = self.caches[side]
            x = quantize(x) * quantize.scale
        return split_heads(x, self.heads)


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(out, in) -> levels of the same shape, and the scale of each row"""
    scale = weight.abs().amax(1).clamp(min=SMALLEST_SCALE) / WEIGHT_LEVEL
    return (weight / scale.unsqueeze(1)).round(), scale


def int8_reference(model: Transformer, calibration: Calibration, int8_caches: bool) -> Transformer:
    """A copy of the model that computes as its int8 graphs do; with int8 caches, as the fast ones do."""
    copied = copy.deepcopy(model)
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            int8_cache = int8_caches and name.startswith("decoder.")
            copied.set_submodule(name, Int8Attention(model.config, name, module, calibration, int8_cache))
        elif isinstance(module, nn.Embedding):
            levels, scale = quantize_rows(module.weight.detach())
            copied.set_submodule(name, nn.Embedding.from_pretrained(levels * scale.unsqueeze(1)))
        elif isinstance(module, nn.Linear) and "attention" not in name:
            copied.set_submodule(name, Int8Linear(f"{name}.weight", module.weight, module.bias, calibration))
    return copied.eval()


def follow(
    reference: Transformer, trace: Trace | None, source: Tensor, target: Tensor
) -> tuple[Tensor, AttentionWeights]:
    """Log-probabilities (B, T, V) and attention of a model that `int8_reference` made, along a trace or on its own."""
    quantizers = [module for module in reference.modules() if isinstance(module, Quantizer)]
    weights = AttentionWeights()
    try:
        for quantizer in quantizers:
            quantizer.trace = trace
        with torch.inference_mode():
            return reference(source, target, weights).log_softmax(-1), weights
    finally:
        for quantizer in quantizers:
            quantizer.trace = None
