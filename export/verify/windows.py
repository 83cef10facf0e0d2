"""Some tokens of a long target, each window after the keys and values of all tokens before it, which torch computed.

So positions up to a model's limit are compared at the cost of a few steps, and the memory of one cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attendant.export.runner import KERNELS, Array, Feeds, GraphStepper
from attendant.export.signature import Sizes
from attendant.export.verify.extent import WINDOW, extent_of
from attendant.export.verify.inputs import random_inputs
from attendant.model.transformer import Cache, Transformer

BLOCK = 64  # tokens that torch decodes at once
LEVELS, SMALLEST = 127, 1e-30  # of a cached value in int8


@dataclass(frozen=True)
class Window:
    """Positions `first` to `last`, and the cached keys and values before them, by names of the step's inputs."""

    first: int
    past: Feeds

    @property
    def last(self) -> int:
        return self.first + WINDOW - 1


class Windows:
    """One request of the longest source and target that a way to run can read, and the windows in it."""

    def __init__(self, sizes: Sizes, way: str) -> None:
        extent = extent_of(sizes)
        self.firsts = extent.windows
        longest = sizes.max_length if way == KERNELS else extent.source
        self.inputs = random_inputs(sizes, [longest], sizes.max_length)
        self._target = torch.from_numpy(self.inputs.target)
        self.way = way

    def of_torch(self, model: Transformer) -> Iterator[tuple[Window, Array]]:
        """Each window with torch's log-probabilities of its tokens, (1, WINDOW, V)"""
        with torch.inference_mode():
            cache = self.encode(model)
            for window in self.prefixes(model, cache):
                yield window, self.expected(model, window, cache)

    def encode(self, model: Transformer) -> Cache:
        source = torch.from_numpy(self.inputs.source)
        mask = model.source_mask(source)
        return model.start(model.encode(source, mask), mask)

    def prefixes(self, model: Transformer, cache: Cache) -> Iterator[Window]:
        """Each window, once its prefix is in the cache."""
        for first in self.firsts:
            while cache.length < first:
                model.decode(self._target[:, cache.length : min(first, cache.length + BLOCK)], cache)
            yield Window(first, self._past(cache))

    def expected(self, model: Transformer, window: Window, cache: Cache) -> Array:
        logits = model.decode(self._target[:, window.first : window.last + 1], cache)
        return logits.log_softmax(-1).numpy()

    def steps(self, stepper: GraphStepper, window: Window) -> Array:
        """The graphs' log-probabilities of a window's tokens; the stepper has read the source."""
        held = stepper.past
        past = as_levels(window.past) if "self_scale_0" in held else window.past
        stepper.adopt(window.first, {name: value.astype(held[name].dtype) for name, value in past.items()})
        tokens = self.inputs.target[:, window.first : window.last + 1]
        return np.stack([stepper.run(token, 1, "logprobs")["logprobs"] for token in tokens.T], axis=1)

    def _past(self, cache: Cache) -> Feeds:
        found: dict[str, Tensor] = {}
        for number, layer in enumerate(cache.layers):
            assert layer.self_k is not None
            assert layer.self_v is not None
            found |= {f"self_key_{number}": layer.self_k, f"self_value_{number}": layer.self_v}
        return {name: value.float().numpy() for name, value in found.items()}


def as_levels(past: Feeds) -> Feeds:
    """Keys and values that are levels times scales, (B, H, P, d), as int8 caches hold them."""
    found: Feeds = {}
    for layer in range(len(past) // 2):
        sides = [past[f"self_{side}_{layer}"] for side in ("key", "value")]
        scales = [np.maximum(np.abs(side).max(-1), SMALLEST) / LEVELS for side in sides]  # (B, H, P)
        key, value = (
            np.rint(side / scale[..., None]).astype(np.int8) for side, scale in zip(sides, scales, strict=True)
        )
        names = [f"self_{part}_{layer}" for part in ("key", "value", "scale")]
        found |= zip(names, (key, value, np.stack(scales, 1).astype(np.float32)), strict=True)
    return found
