"""Which cross-attention aligns source and target best: chosen at export on validation pairs, without gold alignments.

The reference is how much each target token depends on each source token. Each source token s in turn is replaced by
others of the same data; the log-probability that target token t loses by this is its dependence on s. Dependences are
normalised twice: first those of a target token sum to 1, so that every target token counts the same; then those of a
source token do, so that one on which everything depends a little does not stand out. The heads chosen are those whose
largest weights fall on the most dependence.

L layers   H heads   T target   S source
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attendant.export.make.budget import Clock
from attendant.model.text.tokenizer import BOS, EOS, UNK
from attendant.model.transformer import AttentionWeights, Transformer

PAIRS, FEWEST = 64, 4
LONGEST = 40  # tokens of a source or target
SUBSTITUTES = 4  # tokens that each source token is replaced by, in turn
LARGEST_OUTPUT = 2**24  # log-probabilities of one batch
METHOD = "argmax"

Ids = list[int]


@dataclass(frozen=True)
class Reference:
    """The dependences of one pair, and the attention weights to compare with them."""

    dependence: Tensor  # (S, T), normalised
    cross: Tensor  # (L, H, T, S): at the step that predicts each target token, over source tokens without the end token


def choose_alignment(model: Transformer, pairs: Sequence[tuple[Ids, Ids]], start: Sequence[int] = ()) -> dict[str, Any]:
    """The manifest's `alignment`; {} if there is no dependence at all. `start` tokens come before every target."""
    return best_alignment(model, reference_pairs(model, fitting_pairs(model, pairs, start), start))


def fitting_pairs(
    model: Transformer, pairs: Sequence[tuple[Ids, Ids]], start: Sequence[int] = ()
) -> list[tuple[Ids, Ids]]:
    """The first pairs that are short enough."""
    limit = min(LONGEST, model.config.max_length - 1 - len(start))
    return [pair for pair in pairs if 0 < len(pair[0]) <= LONGEST and 0 < len(pair[1]) <= limit][:PAIRS]


def best_alignment(model: Transformer, references: Sequence[Reference]) -> dict[str, Any]:
    """The layer and heads that agree with the references most."""
    config = model.config
    best: tuple[float, int, int, list[int]] = (0.0, 0, 0, [])  # agreement, then the fewest heads, then the last layer
    for layer in range(config.decoder_layers):
        scores = [agreement(references, layer, [head]) for head in range(config.heads)]
        order = sorted(range(config.heads), key=scores.__getitem__, reverse=True)
        for count in range(1, config.heads + 1):
            heads = sorted(order[:count])
            best = max(best, (agreement(references, layer, heads), -count, layer, heads))
    found, _, layer, heads = best
    return {"layer": layer, "heads": heads, "method": METHOD, "agreement": found} if heads else {}


def agreement(references: Sequence[Reference], layer: int, heads: list[int]) -> float:
    """The dependence at the argmax of the heads' mean weights, summed, as a fraction of the largest possible sum."""
    found = possible = 0.0
    for pair in references:
        best = pair.cross[layer, heads].mean(0).argmax(-1)  # (T,)
        found += float(pair.dependence.gather(0, best[None]).sum())
        possible += float(pair.dependence.amax(0).sum())
    return round(found / possible, 4) if possible else 0.0


def reference_pairs(
    model: Transformer,
    pairs: Sequence[tuple[Ids, Ids]],
    start: Sequence[int] = (),
    count: int | None = None,
    seconds: float = math.inf,
) -> list[Reference]:
    """A reference for each pair, the same every time: substitutes are drawn from all the pairs' sources by a seed.

    Only for the first `count`, or until the processor seconds are over, but for FEWEST pairs.
    """
    rng, pool = random.Random(0), [token for source, _ in pairs for token in source]
    found, clock = list[Reference](), Clock()
    for source, target in pairs[:count]:
        others = [[other for other in pool if other != token] or [UNK] for token in source]
        found.append(reference(model, source, target, [rng.choices(other, k=SUBSTITUTES) for other in others], start))
        if len(found) >= FEWEST and clock.seconds() >= seconds:
            break
    return found


def reference(
    model: Transformer, source: Ids, target: Ids, substitutes: list[Ids], start: Sequence[int] = ()
) -> Reference:
    """The reference of one pair; `substitutes` has the same number of tokens for each source token."""
    each = len(substitutes[0])
    variants = torch.tensor([[*source, EOS]]).repeat(len(source) * each + 1, 1)  # the last is unchanged
    for position, tokens in enumerate(substitutes):
        variants[position * each : (position + 1) * each, position] = torch.tensor(tokens)
    with torch.no_grad():
        logprobs, weights = _read(model, variants, [BOS, *start, *target[:-1]], target)
    costs = logprobs[-1] - logprobs[:-1].view(len(source), each, -1).mean(1)  # (S, T)
    cross = torch.stack([layer[-1] for layer in weights.cross])[:, :, len(start) :, : len(source)]
    return Reference(normalise(costs), cross)


def _read(model: Transformer, variants: Tensor, read: Ids, target: Ids) -> tuple[Tensor, AttentionWeights]:
    """Log-probabilities of the target's tokens by variant of the source, (B, T); attention of the last batch."""
    logprobs = []
    for batch in variants.split(max(1, LARGEST_OUTPUT // (len(read) * model.config.target_vocab))):
        weights = AttentionWeights()
        logits = model(batch, torch.tensor([read]).expand(len(batch), -1), weights)[:, len(read) - len(target) :]
        chosen = torch.tensor(target)[None, :, None].expand(len(batch), -1, 1)
        logprobs.append(logits.log_softmax(-1).gather(2, chosen).squeeze(2))
    return torch.cat(logprobs), weights


def normalise(costs: Tensor) -> Tensor:
    """(S, T): negative costs become 0; each target token's are divided by their sum, then each source token's."""
    costs = costs.clamp_min(0)
    by_target = costs / costs.sum(0, keepdim=True).clamp_min(1e-6)
    return by_target / by_target.sum(1, keepdim=True).clamp_min(1e-6)
