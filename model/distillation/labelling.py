"""Labels sources that have no target with the most probable of some candidate targets.

Candidates are the teachers' greedy answers and, if a file of them is given, another model's hypotheses. That model
need not be a Transformer: only its probabilities of whole targets are used. The file has lines of
source<TAB>cost<TAB>target, a cost being minus the natural logarithm of a probability, as Phonetisaurus writes them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from attendant.common.progress import Count
from attendant.model.checkpoint import TrainedModel
from attendant.model.corpus.data import collate
from attendant.model.corpus.pairs import is_field, read_lines
from attendant.model.errors import DataError
from attendant.model.search.decode import decode_all
from attendant.model.text.tokenizer import EOS, PAD, UNK
from attendant.model.transformer import Transformer

SCORED_TOGETHER = 128  # pairs of a batch: more do not fit into a core's cache
Pair = tuple[str, str]
Hypotheses = Mapping[str, Mapping[str, float]]  # {source: {target: cost}}


@dataclass(frozen=True)
class Label:
    """A source with its most probable target."""

    source: str
    target: str
    probability: float
    candidates: dict[str, float]  # {target: probability} if there are hypotheses for the source, else empty


def label(
    models: list[Transformer], words: list[str], trained: TrainedModel, hypotheses: Hypotheses = MappingProxyType({})
) -> list[Label]:
    """A label for each word that has at least one usable candidate (`_candidates`).

    A candidate's probability is that of the teachers' mean distribution. If the word has hypotheses, it is the
    geometric mean of that and the other model's probability, normalised over the candidates; a candidate that the other
    model did not list gets the probability of the least probable one that it did.
    """
    if not words:
        return []
    found = _candidates(models, words, trained, hypotheses)
    pairs = [(word, text) for word, texts in found.items() for text in texts]
    logprobs: dict[str, dict[str, float]] = defaultdict(dict)
    for (word, text), logprob in zip(pairs, log_probabilities(models, pairs, trained), strict=True):
        logprobs[word][text] = logprob
    labels = []
    for word, by_teachers in logprobs.items():
        costs = hypotheses.get(word)
        probabilities = geometric_mean(by_teachers, costs) if costs else {}
        best = max(by_teachers, key=(probabilities or by_teachers).__getitem__)
        probability = probabilities[best] if costs else math.exp(by_teachers[best])
        labels.append(Label(word, best, probability, probabilities))
    return labels


def _candidates(
    models: list[Transformer], words: list[str], trained: TrainedModel, hypotheses: Hypotheses
) -> dict[str, list[str]]:
    """{word: candidate targets}: not blank, short enough for max_length with the end token, without unknown tokens."""
    sources = trained.source.encode_batch(words)
    answers = [[trained.target.decode(ids) for ids in decode_all(model, sources)] for model in models]
    limit = min(model.config.max_length for model in models)
    found = {}
    for word, *texts in zip(words, *answers, strict=True):
        texts = list(dict.fromkeys(text for text in [*texts, *hypotheses.get(word, ())] if is_field(text)))
        ids = trained.target.encode_batch(texts)
        found[word] = [t for t, i in zip(texts, ids, strict=True) if len(i) < limit and UNK not in i]
    return found


@torch.inference_mode()
def log_probabilities(models: list[Transformer], pairs: list[Pair], trained: TrainedModel) -> list[float]:
    """The log-probability of each pair's target, end token included, by the models' mean distribution.

    A source is encoded once for all of its targets.
    """
    found = np.zeros(len(pairs))
    progress = Count("scoring", "pairs", len(pairs))
    by_source = sorted(range(len(pairs)), key=lambda number: (len(pairs[number][0]), pairs[number][0]))
    for first in range(0, len(pairs), SCORED_TOGETHER):
        numbers = by_source[first : first + SCORED_TOGETHER]
        rows = {source: row for row, source in enumerate(dict.fromkeys(pairs[number][0] for number in numbers))}
        of_each = torch.tensor([rows[pairs[number][0]] for number in numbers])
        targets = trained.target.encode_batch([pairs[number][1] for number in numbers])
        batch = collate(trained.source.encode_batch(list(rows)), targets)
        wanted = batch.target[:, 1:]
        each = (_distribution(model, batch.source, batch.target, of_each) for model in models)
        distribution = sum(each, start=torch.zeros(())) / len(models)
        logprobs = distribution.gather(-1, wanted.unsqueeze(-1)).squeeze(-1).log()
        found[numbers] = logprobs.masked_fill(wanted == PAD, 0.0).sum(-1).numpy()
        progress.add(len(numbers))
    progress.close()
    return found.tolist()


def _distribution(model: Transformer, source: Tensor, target: Tensor, source_of_each: Tensor) -> Tensor:
    """Next-token distributions: source (B, S), target (R, T), source_of_each (R,) -> (R, T - 1, V)"""
    mask = model.source_mask(source)
    cache = model.start(model.encode(source, mask), mask)
    cache.reorder(source_of_each)
    return model.decode(target[:, :-1], cache).softmax(-1)


def geometric_mean(by_teachers: Mapping[str, float], costs: Mapping[str, float]) -> dict[str, float]:
    """Normalised geometric mean: {text: log-probability}, {text: cost} of the other model -> {text: probability}"""
    last = max(costs.values())
    logs = {text: (logprob - costs.get(text, last)) / 2 for text, logprob in by_teachers.items()}
    most = max(logs.values())
    means = {text: math.exp(log - most) for text, log in logs.items()}
    total = sum(means.values())
    return {text: mean / total for text, mean in means.items()}


def continuations(target: list[int], candidates: Iterable[tuple[list[int], float]], vocabulary: int) -> Tensor:
    """Next-token distribution at each position of a target, end included, from weighted candidates: (T + 1, V)

    A candidate counts at a position if it shares all of the target's tokens before it: for the target 'A B' and the
    candidates 'A B' (0.6) and 'A C' (0.3), the first position has A with 1, the second B with 2/3 and C with 1/3.
    """
    distribution = torch.zeros(len(target) + 1, vocabulary)
    for ids, probability in candidates:
        for position, token in enumerate([*ids, EOS]):
            distribution[position, token] += probability
            if position == len(target) or token != target[position]:
                break
    return distribution / distribution.sum(-1, keepdim=True)


def read_hypotheses(path: Path, normalized: Callable[[str], str] = str) -> dict[str, dict[str, float]]:
    """{normalized source: {target: cost}}; a target that is listed twice has the lower cost."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for number, line in read_lines(path):
        try:
            source, written, target = line.split("\t")
            cost = float(written)
        except ValueError:
            cost = math.nan
        if not math.isfinite(cost):
            raise DataError(
                f"{path}, line {number}, is not source<TAB>cost<TAB>target with a number for a cost: {line[:60]!r}"
            )
        targets = found[normalized(source)]
        if target := target.strip():
            targets[target] = min(cost, targets.get(target, math.inf))
    return {source: targets for source, targets in found.items() if targets}
