"""The replay of a certificate: each answer is forced through the graphs, token by token.

Every log-probability must be within the variant's tolerance of torch's. No torch is needed; the service does the same
when it starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from attendant.export.runner import Array, Runner, chunks, padded
from attendant.model.text.tokenizer import BOS, EOS, PAD


def drift(certificate: dict[str, Any], runner: Runner) -> float:
    """The largest distance of a variant's log-probabilities from the certificate's; NaN if any is NaN."""
    distances: list[Array] = []
    replayed = [(s, s[search]) for s in certificate["samples"] for search in ("greedy", "beam") if search in s]
    for batch in chunks(replayed, 8):
        source, source_length = padded([[*sample["source_ids"], EOS] for sample, _ in batch], PAD)
        endings = [[EOS] if answer["finish_reason"] == "stop" else [] for _, answer in batch]
        targets = [[*answer["ids"], *ending] for (_, answer), ending in zip(batch, endings, strict=True)]
        target, _ = padded([[BOS, *ids[:-1]] for ids in targets], PAD)
        found = runner.stepwise(source, source_length, target)
        for row, ((sample, answer), ids) in enumerate(zip(batch, targets, strict=True)):
            distances.append(np.abs(found[row, np.arange(len(ids)), ids] - answer["logprobs"]))
            next_token = sample["next_token"]
            distances.append(np.abs(found[row, 0, next_token["ids"]] - next_token["logprobs"]))
    return float(np.concatenate(distances).max())  # unlike Python's max, it does not pass over NaN


def check_samples(certificate: dict[str, Any], max_length: int) -> Iterator[str]:
    """Problems of the samples themselves: there are none, or their answers are too long to be served."""
    if not certificate.get("samples"):
        yield "it has no samples"
        return
    for number, sample in enumerate(certificate["samples"]):
        for search in ("greedy", "beam"):
            if len(sample[search]["ids"]) >= max_length:
                yield (
                    f"the {search} answer of sample {number} has {len(sample[search]['ids'])} tokens, and with its end "
                    f"token the service can score {max_length}; export the model again"
                )
