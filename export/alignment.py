"""Which cross-attention aligns source and target best: chosen at export on validation pairs, without gold alignments.

The reference is a symmetric alignment of the model itself. Each source token in turn is replaced by the unknown token;
source token s and target token t are linked where losing s costs t more than losing any other source token, and costs t
more than any other target token. The heads chosen are those whose largest weights find the most links.

L layers   H heads   T target   S source
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from model.tokenizer import BOS, EOS, UNK
from model.transformer import AttentionWeights, Transformer

PAIRS = 64
LONGEST = 40  # tokens of a source or target
LARGEST_OUTPUT = 2**24  # log-probabilities of one batch
METHOD = "argmax"

Ids = list[int]


@dataclass(frozen=True)
class Linked:
    """A pair with its reference."""

    links: list[tuple[int, int]]  # source and target positions
    cross: Tensor  # (L, H, T, S): of the step that gives each target token, over source tokens without the end token


def choose_alignment(model: Transformer, pairs: Sequence[tuple[Ids, Ids]], start: Sequence[int] = ()) -> dict[str, Any]:
    """The manifest's `alignment`; {} where nothing is linked. `start` tokens come before every target."""
    config = model.config
    limit = min(LONGEST, config.max_length - 1 - len(start))
    fitting = [pair for pair in pairs if 0 < len(pair[0]) <= LONGEST and 0 < len(pair[1]) <= limit][:PAIRS]
    linked = [link(model, source, target, start) for source, target in fitting]
    total = sum(len(pair.links) for pair in linked)
    if not total:
        return {}
    best: tuple[int, int, int, list[int]] = (-1, 0, 0, [])  # links found, then the fewest heads, then the last layer
    for layer in range(config.decoder_layers):
        scores = [agreement(linked, layer, [head]) for head in range(config.heads)]
        order = sorted(range(config.heads), key=scores.__getitem__, reverse=True)
        for count in range(1, config.heads + 1):
            heads = sorted(order[:count])
            best = max(best, (agreement(linked, layer, heads), -count, layer, heads))
    found, _, layer, heads = best
    return {"layer": layer, "heads": heads, "method": METHOD, "agreement": round(found / total, 4)}


def agreement(linked: Sequence[Linked], layer: int, heads: list[int]) -> int:
    """How many links the largest of the heads' mean weights finds."""
    found = 0
    for pair in linked:
        best = pair.cross[layer, heads].mean(0).argmax(-1).tolist()  # (T,)
        found += sum(best[target] == source for source, target in pair.links)
    return found


def link(model: Transformer, source: Ids, target: Ids, start: Sequence[int] = ()) -> Linked:
    """The links of one pair, and its attention weights."""
    with torch.no_grad():
        return _link(model, source, target, start)


def _link(model: Transformer, source: Ids, target: Ids, start: Sequence[int]) -> Linked:
    read = torch.tensor([[BOS, *start, *target[:-1]]])
    variants = torch.tensor([[*source, EOS]]).repeat(len(source) + 1, 1)  # the last is as it is
    variants[range(len(source)), range(len(source))] = UNK
    first, rows = len(start), max(1, LARGEST_OUTPUT // (read.shape[1] * model.config.target_vocab))
    logprobs = []
    for batch in variants.split(rows):
        weights = AttentionWeights()
        logits = model(batch, read.expand(len(batch), -1), weights)[:, first:]
        chosen = torch.tensor(target)[None, :, None].expand(len(batch), -1, 1)
        logprobs.append(logits.log_softmax(-1).gather(2, chosen).squeeze(2))  # (B, T)
    costs = (logprobs[-1][-1] - torch.cat(logprobs)[:-1]).tolist()  # S of T: what losing each source token costs
    cross = torch.stack([layer[-1] for layer in weights.cross])[:, :, first:, : len(source)]
    return Linked(symmetric_links(costs), cross)


def symmetric_links(costs: list[list[float]]) -> list[tuple[int, int]]:
    """(source, target) where a positive cost is the largest of its row and of its column; of equals the first."""
    by_target = [max(range(len(costs)), key=lambda s: costs[s][t]) for t in range(len(costs[0]))]
    by_source = [max(range(len(row)), key=lambda t: row[t]) for row in costs]
    return [(s, t) for t, s in enumerate(by_target) if by_source[s] == t and costs[s][t] > 0]
