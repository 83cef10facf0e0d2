"""Validation: the loss over the validation file, and with select=error the error rates of greedy search.

Pairs with a side of max_length tokens or more are left out, as they are in training.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from attendant.model.config import TrainConfig
from attendant.model.corpus.data import Batch, EncodedCorpus, ordered_batches
from attendant.model.corpus.pairs import read_pairs
from attendant.model.evaluation.evaluate import text_error_rates
from attendant.model.search.decode import decode_all
from attendant.model.text.tokenizer import Tokenizer
from attendant.model.transformer import Transformer

LARGER = 4  # times as many tokens in a batch as in training: nothing is kept for a backward pass
IGNORING = "_ignoring"  # suffix of the rates that are computed without what select_ignore matches


class Validator:
    def __init__(
        self,
        options: TrainConfig,
        corpus: EncodedCorpus,
        tsv: Path,
        source: Tokenizer,
        target: Tokenizer,
        max_length: int,
    ) -> None:
        self.options, self.corpus, self.source, self.target = options, corpus, source, target
        self.references: dict[str, list[str]] = {}
        if options.select == "error":
            self.references = spread(fitting_references(tsv, source, target, max_length), options.validate_sources)

    @property
    def criterion(self) -> str:
        """What `value` measures: two values can be compared only where this is the same."""
        if self.options.select == "loss":
            return "loss"
        ignoring = f" without {self.options.select_ignore}" if self.options.select_ignore else ""
        return f"error{ignoring} of {len(self.references)} sources"

    def value(self, metrics: dict[str, float]) -> float:
        """The metric by which the best checkpoint is chosen: lower is better."""
        if self.options.select == "loss":
            return metrics["loss"]
        return metrics["sequence_error_rate" + (IGNORING if self.options.select_ignore else "")]

    @torch.inference_mode()
    def metrics(self, model: Transformer, loss: Callable[[Batch], Tensor]) -> dict[str, float]:
        """Loss per token, and error rates in percent; `loss` gives the summed loss of a batch."""
        total, tokens = 0.0, 0
        for batch in ordered_batches(self.corpus, LARGER * self.options.batch_tokens):
            total += float(loss(batch))
            tokens += batch.target_tokens
        metrics = {"loss": total / tokens}
        if not self.references:
            return metrics
        found = decode_all(model, self.source.encode_batch(list(self.references)))
        outputs = [self.target.decode(ids) for ids in found]
        patterns = {"": None} | ({IGNORING: self.options.select_ignore} if self.options.select_ignore else {})
        for suffix, pattern in patterns.items():
            ignore = re.compile(pattern) if pattern else None
            rates = text_error_rates(outputs, list(self.references.values()), self.target.pieces, ignore)
            metrics |= {f"sequence_error_rate{suffix}": rates.sequence, f"token_error_rate{suffix}": rates.token}
        return metrics


def format_metrics(metrics: dict[str, float]) -> str:
    """The figures of a validation with their names and units."""
    names = {
        "loss": ("loss", "nats per token"),
        "sequence_error_rate": ("wrong sequences", "%"),
        "token_error_rate": ("wrong tokens", "%"),
    }
    parts = []
    for key, value in metrics.items():
        name, unit = names[key.removesuffix(IGNORING)]
        without = " without what select_ignore matches" if key.endswith(IGNORING) else ""
        parts.append(f"{name} {value:.4g} {unit}{without}")
    return ", ".join(parts)


def fitting_references(tsv: Path, source: Tokenizer, target: Tokenizer, max_length: int) -> dict[str, list[str]]:
    """Each source with its targets, without the pairs that are too long for the model."""
    pairs = list(read_pairs(tsv))
    sources = source.encode_batch([pair[0] for pair in pairs])
    targets = target.encode_batch([pair[1] for pair in pairs])
    references: dict[str, list[str]] = {}
    for (text, wanted), s, t in zip(pairs, sources, targets, strict=True):
        if max(len(s), len(t)) < max_length:  # the end token takes a place
            references.setdefault(text, []).append(wanted)
    return references


def spread(references: dict[str, list[str]], count: int) -> dict[str, list[str]]:
    """`count` of the sources, evenly spaced over the file; 0: all."""
    sources = list(references)
    count = min(count, len(sources)) or len(sources)
    return {sources[i]: references[sources[i]] for i in (k * len(sources) // count for k in range(count))}
