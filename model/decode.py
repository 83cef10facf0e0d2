"""Batched beam search with a cache: how `attendant train` and `attendant evaluate` decode many sources quickly.

B sources   K beams   V vocabulary.  A row is one beam of one source; beam size 1 is greedy search.
`model.reference` is the slow and obvious search that this one is tested against.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.data import collate
from model.progress import Count
from model.tokenizer import BOS, EOS, PAD
from model.transformer import Transformer, padding_mask

BATCH_ROWS = 512
NEVER = float("-inf")


@torch.inference_mode()
def decode_all(
    model: Transformer, sources: list[list[int]], beam_size: int = 1, length_penalty: float = 1.0
) -> list[list[int]]:
    """The best target of each source (ids without start and end), in the order of the sources."""
    results: list[list[int]] = [[] for _ in sources]
    progress = Count("decoding", "sources", len(sources))
    by_length = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    batch = max(1, BATCH_ROWS // beam_size)
    for first in range(0, len(by_length), batch):
        chosen = by_length[first : first + batch]
        found = decode_batch(model, [sources[i] for i in chosen], beam_size, length_penalty)
        for i, ids in zip(chosen, found, strict=True):
            results[i] = ids
        progress.add(len(chosen))
    progress.close()
    return results


@torch.inference_mode()
def decode_batch(
    model: Transformer, sources: list[list[int]], beam_size: int, length_penalty: float
) -> list[list[int]]:
    search = _Search(model, sources, beam_size, length_penalty)
    for length in range(1, model.config.max_length + 1):
        search.step(length)
        if not search.open.any():
            break
    return search.best_ids


class _Search:
    """The state of one batch. A beam that ends keeps its place, so a search has beam_size hypotheses in all."""

    def __init__(self, model: Transformer, sources: list[list[int]], beam_size: int, length_penalty: float) -> None:
        self.model, self.beam_size, self.penalty = model, beam_size, length_penalty
        self.limit, self.count = model.config.max_length, len(sources)
        device = model.output.weight.device
        ids = collate(sources, [[] for _ in sources]).source.to(device)  # (B, S)
        mask = padding_mask(ids)
        self.cache = model.start(model.encode(ids, mask), mask)
        self.cache.reorder(torch.arange(self.count, device=device).repeat_interleave(beam_size))
        self.first_row = torch.arange(self.count, device=device).unsqueeze(1) * beam_size  # (B, 1)
        self.tokens = torch.full((self.count * beam_size, 1), BOS, device=device)  # (B K, T)
        self.sums = torch.full((self.count, beam_size), NEVER, device=device)
        self.sums[:, 0] = 0.0  # all beams begin alike, so only the first counts
        self.width = torch.full((self.count, 1), beam_size, device=device)  # beams that have not ended
        self.best_score = torch.full((self.count,), NEVER, device=device)
        self.best_ids: list[list[int]] = [[] for _ in sources]
        self.open = torch.ones(self.count, dtype=torch.bool, device=device)

    def step(self, length: int) -> None:
        """Extend every live beam by a token; `length` counts the token, and the end token if it is one."""
        logprobs = self.model.decode(self.tokens[:, -1:], self.cache)[:, -1].log_softmax(-1)  # (B K, V)
        logprobs[:, [PAD, BOS]] = NEVER
        totals = self.sums.view(-1, 1) + logprobs
        sums, flat = totals.view(self.count, -1).topk(self.beam_size)  # (B, K), best first
        sums = sums.masked_fill(torch.arange(self.beam_size, device=sums.device) >= self.width, NEVER)
        rows = (flat // logprobs.shape[1] + self.first_row).flatten()
        chosen = flat % logprobs.shape[1]
        self.tokens = torch.cat([self.tokens[rows], chosen.view(-1, 1)], dim=1)
        self.cache.reorder(rows)
        ended = (chosen == EOS) | (length == self.limit)
        self._keep_best(sums.masked_fill(~ended, NEVER) / length**self.penalty)
        self.width -= (ended & (sums > NEVER)).sum(1, keepdim=True)
        self.sums = sums.masked_fill(ended, NEVER)
        # A sum only falls, and its divisor is at most that of the longest target: past that, no live beam can win.
        divisor = float(self.limit if self.penalty > 0 else length + 1) ** self.penalty
        self.open &= self.sums.amax(1) / divisor > self.best_score

    def _keep_best(self, scores: Tensor) -> None:
        """scores (B, K) of the beams that end here, -inf elsewhere"""
        score, beam = scores.max(dim=1)
        for i in (self.open & (score > self.best_score)).nonzero().flatten().tolist():
            self.best_score[i] = score[i]
            ids = self.tokens[i * self.beam_size + int(beam[i]), 1:].tolist()
            self.best_ids[i] = ids[:-1] if ids[-1] == EOS else ids
