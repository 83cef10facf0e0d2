"""Beam search over a variant's graphs, for verification: the definition of docs/architecture.md, batched by rows.

It shares no code with torch's searches or the service's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from export.runner import Array, Decoder, Runner, chunks, padded
from model.tokenizer import BOS, EOS, PAD

BATCH = 64


@dataclass
class Beams:
    """The hypotheses of one source: live ones as (ids, sum, row), the best that ended as (score, ids)."""

    places: int
    live: list[tuple[list[int], float, int]]
    best: tuple[float, list[int]] = (-np.inf, [])


def search(runner: Runner, sources: list[list[int]], beam_size: int, length_penalty: float = 1.0) -> list[list[int]]:
    """The best target of each source, in order."""
    found: dict[int, list[int]] = {}
    for numbers in chunks(sorted(range(len(sources)), key=lambda i: len(sources[i])), BATCH):
        answers = _search_batch(runner, [sources[i] for i in numbers], beam_size, length_penalty)
        found |= dict(zip(numbers, answers, strict=True))
    return [found[i] for i in range(len(sources))]


def _search_batch(runner: Runner, sources: list[list[int]], beam_size: int, penalty: float) -> list[list[int]]:
    limit = runner.sizes.max_length
    source, source_length = padded([[*ids, EOS] for ids in sources], PAD)
    decoder = Decoder(runner, source, source_length, rows=len(sources), length=limit)
    searches = [Beams(beam_size, [([], 0.0, i)]) for i in range(len(sources))]
    for length in range(1, limit + 1):
        open_ones = [(number, beams) for number, beams in enumerate(searches) if beams.live]
        if not open_ones:
            break
        request = np.array([number for number, beams in open_ones for _ in beams.live])
        tokens = np.array([ids[-1] if ids else BOS for _, beams in open_ones for ids, _, _ in beams.live])
        decoder.reorder(np.array([row for _, beams in open_ones for _, _, row in beams.live]))
        logprobs = decoder.step(tokens, np.full(len(tokens), length - 1), request)
        first = 0
        for _, beams in open_ones:
            rows = range(first, first + len(beams.live))
            first += len(beams.live)
            _extend(beams, logprobs[rows.start : rows.stop], rows.start, length, limit, penalty)
    return [beams.best[1] for beams in searches]


def _extend(beams: Beams, logprobs: Array, first_row: int, length: int, limit: int, penalty: float) -> None:
    """Every live hypothesis by every token; the best take the places."""
    totals = logprobs.astype(np.float64) + np.array([[total] for _, total, _ in beams.live])  # (K, V)
    totals[:, [PAD, BOS]] = -np.inf
    vocabulary, live = totals.shape[1], []
    for flat in np.argsort(-totals, axis=None, kind="stable")[: beams.places]:
        parent, token = divmod(int(flat), vocabulary)
        ids, total = beams.live[parent][0], float(totals[parent, token])
        if token != EOS and length < limit:
            live.append(([*ids, token], total, first_row + parent))
            continue
        beams.places -= 1
        score = total / length**penalty
        if score > beams.best[0]:
            beams.best = (score, ids if token == EOS else [*ids, token])
    best_possible = max((total for _, total, _ in live), default=-np.inf) / (limit if penalty > 0 else 1) ** penalty
    beams.live = live if best_possible > beams.best[0] else []
