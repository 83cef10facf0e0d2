"""The searches, slow and obvious: one source at a time, the whole prefix run again for every token, no cache.

This is the oracle that faster searches are tested against; it shares no code with them. The beam search is the one
that `docs/architecture.md` defines: a hypothesis that ends keeps its place among the beam_size, and the search goes
on until no live one can still win.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import torch

from model.tokenizer import BOS, EOS, PAD
from model.transformer import Transformer


@dataclass(frozen=True)
class Hypothesis:
    ids: tuple[int, ...]  # without start and end
    logprobs: tuple[float, ...]  # of each token, the end token included
    finish_reason: str  # stop: the end token came; length: the limit came first

    def score(self, length_penalty: float) -> float:
        """The summed log-probability, divided by length ** length_penalty, the end token counted in both."""
        return sum(self.logprobs) / len(self.logprobs) ** length_penalty


@torch.inference_mode()
def next_logprobs(model: Transformer, source: list[int], prefix: tuple[int, ...]) -> list[float]:
    """The log-probability of every token after a prefix."""
    logits = model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *prefix]]))
    return logits[0, -1].double().log_softmax(-1).tolist()


def greedy(model: Transformer, source: list[int], max_length: int | None = None) -> Hypothesis:
    """The most probable token each time, up to max_length tokens, the end token included."""
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    for _ in range(max_length or model.config.max_length):
        candidates = next_logprobs(model, source, ids)
        token = max((t for t in range(len(candidates)) if t not in (PAD, BOS)), key=lambda t: candidates[t])
        logprobs += (candidates[token],)
        if token == EOS:
            return Hypothesis(ids, logprobs, "stop")
        ids += (token,)
    return Hypothesis(ids, logprobs, "length")


def beam(
    model: Transformer,
    source: list[int],
    beam_size: int,
    length_penalty: float = 1.0,
    num_hypotheses: int = 1,
    max_length: int | None = None,
) -> list[Hypothesis]:
    """The best hypotheses, best first."""
    limit = max_length or model.config.max_length
    live = [Hypothesis((), (), "live")]
    finished: list[Hypothesis] = []
    for length in range(1, limit + 1):
        candidates: list[tuple[Hypothesis, int, float]] = []
        for hypothesis in live:
            logprobs = next_logprobs(model, source, hypothesis.ids)
            tokens = (t for t in range(len(logprobs)) if t not in (PAD, BOS))
            best = heapq.nlargest(beam_size, tokens, key=logprobs.__getitem__)  # no others can be among the best of all
            candidates += [(hypothesis, t, logprobs[t]) for t in best]
        candidates.sort(key=lambda c: sum(c[0].logprobs) + c[2], reverse=True)
        live, room = [], beam_size - len(finished)
        for hypothesis, token, logprob in candidates[:room]:
            logprobs_so_far = (*hypothesis.logprobs, logprob)
            if token == EOS:
                finished.append(Hypothesis(hypothesis.ids, logprobs_so_far, "stop"))
            elif length == limit:
                finished.append(Hypothesis((*hypothesis.ids, token), logprobs_so_far, "length"))
            else:
                live.append(Hypothesis((*hypothesis.ids, token), logprobs_so_far, "live"))
        finished.sort(key=lambda h: h.score(length_penalty), reverse=True)
        if not live or _decided(live, finished, length_penalty, num_hypotheses, limit):
            break
    return finished[:num_hypotheses]


def _decided(
    live: list[Hypothesis], finished: list[Hypothesis], length_penalty: float, wanted: int, limit: int
) -> bool:
    """Whether no live hypothesis can still be among the best: a sum only falls, and limit is the largest length."""
    if len(finished) < wanted:
        return False
    best_possible = max(
        sum(h.logprobs) / (limit if length_penalty > 0 else len(h.logprobs) + 1) ** length_penalty for h in live
    )
    return finished[wanted - 1].score(length_penalty) >= best_possible
