"""The loss of an imported model on sample pairs, to set beside what its checkpoint records."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from attendant.model.importers.imported import ImportedModel
from attendant.model.text.tokenizer import BOS, EOS

MOST_PAIRS = 100


@torch.inference_mode()
def bits_per_token(imported: ImportedModel, pairs: Sequence[tuple[str, str]]) -> float | None:
    """Cross-entropy in bits a target token, the end token included; None where no pair fits the model."""
    model, limit = imported.load(), imported.config.max_length
    start = list(imported.generation.get("target_prefix", []))
    total, count = 0.0, 0
    for source_text, target_text in pairs[:MOST_PAIRS]:
        source, target = imported.source.encode(source_text).ids, imported.target.encode(target_text).ids
        if not source or max(len(source) + 1, len(start) + len(target) + 1) > limit:
            continue
        logits = model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *start, *target]]))[0, len(start) :]
        chosen = torch.tensor([*target, EOS])[:, None]
        total -= float(logits.log_softmax(-1).gather(1, chosen).double().sum())
        count += len(target) + 1
    return total / count / math.log(2) if count else None
