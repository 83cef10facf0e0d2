"""Greedy and beam search, slow and obvious: one source at a time, the whole prefix run again for every token, no cache.

This is the oracle that faster searches are tested against; it shares no code with them. The beam search is the one
that `docs/architecture.md` defines, as `transformers` and CTranslate2 have it: a hypothesis that finishes leaves the
beam, and the next best takes its place.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import torch

from attendant.model.text.tokenizer import BOS, EOS, PAD
from attendant.model.transformer import Transformer


@dataclass(frozen=True)
class Hypothesis:
    ids: tuple[int, ...]  # without start and end
    logprobs: tuple[float, ...]  # of each token, the end token included
    finish_reason: str  # stop: ended by the end token; length: cut off at the length limit

    def score(self, length_penalty: float) -> float:
        """The summed log-probability, divided by length ** length_penalty, the end token counted in both."""
        divisor: float = len(self.logprobs) ** length_penalty
        return sum(self.logprobs) / divisor


@torch.inference_mode()
def next_logprobs(model: Transformer, source: list[int], prefix: tuple[int, ...]) -> list[float]:
    """The log-probability of every token after a prefix."""
    logits = model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *prefix]]))
    logprobs: list[float] = logits[0, -1].double().log_softmax(-1).tolist()
    return logprobs


def greedy(
    model: Transformer, source: list[int], max_length: int | None = None, start: tuple[int, ...] = ()
) -> Hypothesis:
    """The most probable token at each step, up to max_length tokens, the end token included.

    `start`: tokens that follow the start token and are not part of the answer, such as a language.
    """
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    for _ in range(max_length or model.config.max_length):
        candidates = next_logprobs(model, source, (*start, *ids))
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
    early_stopping: bool | str = False,
    start: tuple[int, ...] = (),
) -> list[Hypothesis]:
    """The best hypotheses, best first; `start` as for `greedy`."""
    limit = max_length or model.config.max_length
    live = [Hypothesis((), (), "live")]
    finished: list[Hypothesis] = []
    for length in range(1, limit + 1):
        candidates: list[tuple[Hypothesis, int, float]] = []
        for hypothesis in live:
            logprobs = next_logprobs(model, source, (*start, *hypothesis.ids))
            tokens = (t for t in range(len(logprobs)) if t not in (PAD, BOS))
            best = heapq.nlargest(2 * beam_size, tokens, key=logprobs.__getitem__)  # no other can be in the top 2K
            candidates += [(hypothesis, t, logprobs[t]) for t in best]
        candidates.sort(key=lambda c: sum(c[0].logprobs) + c[2], reverse=True)
        live = []
        for rank, (hypothesis, token, logprob) in enumerate(candidates[: 2 * beam_size]):
            logprobs_so_far = (*hypothesis.logprobs, logprob)
            ends = token == EOS or length == limit
            if not ends and len(live) < beam_size:
                live.append(Hypothesis((*hypothesis.ids, token), logprobs_so_far, "live"))
            elif ends and rank < beam_size and token == EOS:
                finished.append(Hypothesis(hypothesis.ids, logprobs_so_far, "stop"))
            elif ends and rank < beam_size:
                finished.append(Hypothesis((*hypothesis.ids, token), logprobs_so_far, "length"))
        finished = sorted(finished, key=lambda h: h.score(length_penalty), reverse=True)[:beam_size]
        if not live or _stops(live, finished, beam_size, length_penalty, early_stopping, limit):
            break
    return finished[:num_hypotheses]


def _stops(
    live: list[Hypothesis],
    finished: list[Hypothesis],
    beam_size: int,
    length_penalty: float,
    early_stopping: bool | str,
    limit: int,
) -> bool:
    """Whether to stop: beam_size hypotheses have finished and, unless early_stopping is True, no live one is better.

    A live one is scored by its current length (early_stopping=False), or by the length that suits it best ("never").
    """
    if len(finished) < beam_size:
        return False
    if early_stopping is True or beam_size == 1:  # a beam of one is greedy
        return True
    length = limit if early_stopping == "never" and length_penalty > 0 else len(live[0].logprobs)
    best_possible: float = max(sum(h.logprobs) for h in live) / length**length_penalty
    return best_possible <= finished[-1].score(length_penalty)
