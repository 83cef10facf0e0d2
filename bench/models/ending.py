"""An end token for a random model: every answer is as long as its source, in any precision and any search.

A load of mixed lengths compares two engines only if both compute equally many tokens. By chance alone the end token
would come elsewhere after every rounding. So some features of the model carry two things past its random layers: the
position, and whether a token is the source's end. One head of the last decoder layer looks at the source token in its
own position; where that is the end, it writes what the end token's weights read.

The work is that of any other model of this shape: the weights are different numbers, nothing else.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attendant.model.text.tokenizer import EOS
from attendant.model.transformer import Residual, Transformer

FLAG = 0.35  # the end token's weight in the feature that says so
SAID = 45.0  # what the head writes there when the source has ended: the end's logit is near 30, words' are below 20
REST = 0.55  # of a word's weights in the end token's others: LayerNorm then leaves its position as large as words'
LEAD = 20.0  # of the right position's score over the next, before the softmax
SAMPLES, LENGTH = 8, 24


def add_ending(model: Transformer) -> None:
    """Change a model's weights so that it ends; its table of embeddings has its words already."""
    d_model = model.config.d_model
    places, contrast = position_features(d_model, model.config.heads)
    flag = d_model - 2  # its position encoding is a sine of the longest wavelength: nearly 0 everywhere
    kept = torch.tensor([*places, flag])
    with torch.no_grad():
        table = model.output.weight
        table[:, kept] = 0.0
        table[EOS] = REST * table[EOS + 1]
        table[EOS, flag] = FLAG
        for name, weight in model.named_parameters():
            if name.endswith(("project_out.weight", "narrow.weight")):
                weight[kept] = 0.0
        _look_at_own_position(model.decoder[-1].cross_attention, places, contrast, flag)
        _keep_through_norms(model, kept)


def position_features(d_model: int, heads: int) -> tuple[list[int], float]:
    """As many features of the shortest wavelengths as tell positions apart best, and by what share of the score."""
    apart = np.arange(1, d_model)
    best = (0.0, 1)
    for pairs in range(4, d_model // heads // 2 + 1):
        rates = 10000.0 ** (-2 * np.arange(pairs) / d_model)
        best = max(best, (1 - float(np.cos(np.outer(apart, rates)).mean(1).max()), pairs))
    return [*range(2 * best[1])], best[0]


def _look_at_own_position(attention: Any, places: list[int], contrast: float, flag: int) -> None:
    """The first head's weights: queries and keys are positions, the value is the flag."""
    d_model = attention.project_out.weight.shape[0]
    head = d_model // attention.heads
    peak = LEAD / contrast  # the score of the right position; len(places) / 2 is the sum of squares of one
    gain = math.sqrt(peak * math.sqrt(head) / (len(places) / 2))
    for first in (0, d_model, 2 * d_model):
        attention.project_in.weight[first : first + head] = 0.0
    for j, place in enumerate(places):
        attention.project_in.weight[j, place] = gain
        attention.project_in.weight[d_model + j, place] = gain
    attention.project_in.weight[2 * d_model, flag] = 1.0
    attention.project_out.weight[:, :head] = 0.0
    attention.project_out.weight[flag, 0] = SAID / (FLAG * math.sqrt(d_model))


def _keep_through_norms(model: Transformer, kept: Tensor) -> None:
    """Each LayerNorm takes off the mean of its input and divides by its deviation: give the kept features both back."""

    def undo(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        norm.weight[kept] = inputs[0].std(-1).median()
        norm.bias[kept] = inputs[0].mean(-1).median()

    handles = [part.norm.register_forward_pre_hook(undo) for part in model.modules() if isinstance(part, Residual)]
    generator = torch.Generator().manual_seed(0)
    source, target = torch.randint(EOS + 1, model.config.target_vocab, (2, SAMPLES, LENGTH), generator=generator)
    model(source, target)
    for handle in handles:
        handle.remove()
