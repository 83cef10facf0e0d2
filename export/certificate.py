"""The certificate: sample inputs with the torch model's own answers, which travel with the bundle.

The service replays it when it starts: each sample's target is forced through the graphs token by token, and every
log-probability must be within the variant's tolerance of torch's. An answer has at most max_length - 1 tokens, so that
it can be scored with an end token after it; one that did not end by then has the finish_reason "length".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from export.runner import Array, Runner, chunks, padded
from model.checkpoint import TrainedModel
from model.reference import Hypothesis, beam, greedy, next_logprobs
from model.tokenizer import BOS, EOS, PAD

SAMPLES = 16
BEAM = 4
LONGEST = 64  # tokens of a certified answer
TOP_TOKENS = 5  # tokens of the next-token distribution that a sample keeps
TORCH_TOLERANCE = 1e-4  # nats, between the certificate and torch itself


def make_certificate(trained: TrainedModel, texts: list[str]) -> dict[str, Any]:
    """Answers of the torch model, by the slow reference search, for sources of all lengths among the texts."""
    by_length = sorted(dict.fromkeys(texts), key=lambda text: len(trained.source.encode(text)))
    picked = sorted({round(i * (len(by_length) - 1) / (SAMPLES - 1)) for i in range(SAMPLES)})
    samples = [_sample(trained, by_length[i]) for i in picked]
    limit = longest_answer(trained)
    return {
        "torch": torch.__version__,
        "beam_size": BEAM,
        "length_penalty": 1.0,
        "max_length": limit,
        "samples": samples,
    }


def longest_answer(trained: TrainedModel) -> int:
    """Tokens of an answer, its end token included, that leave room for an end token to be scored."""
    return min(LONGEST, int(trained.config.max_length) - 1)


def _sample(trained: TrainedModel, text: str) -> dict[str, Any]:
    source, limit = trained.source.encode(text), longest_answer(trained)
    found = greedy(trained.model, source, limit)
    first = np.array(next_logprobs(trained.model, source, ()))
    top = np.argsort(-first, kind="stable")[:TOP_TOKENS]
    return {
        "source": text,
        "source_ids": source,
        "greedy": _answer(found),
        "beam": _answer(beam(trained.model, source, BEAM, max_length=limit)[0]),
        "next_token": {"ids": top.tolist(), "logprobs": first[top].tolist()},
    }


def _answer(hypothesis: Hypothesis) -> dict[str, Any]:
    return {
        "ids": list(hypothesis.ids),
        "logprobs": list(hypothesis.logprobs),
        "score": hypothesis.score(1.0),
        "finish_reason": hypothesis.finish_reason,
    }


def drift(certificate: dict[str, Any], runner: Runner) -> float:
    """The largest distance of a variant's log-probabilities from the certificate's; NaN if any is NaN."""
    distances: list[Array] = []
    replayed = [(s, s[search]) for s in certificate["samples"] for search in ("greedy", "beam") if search in s]
    for batch in chunks(replayed, 8):
        source, source_length = padded([[*sample["source_ids"], EOS] for sample, _ in batch], PAD)
        endings = [[EOS] if answer["finish_reason"] == "stop" else [] for _, answer in batch]
        said = [[*answer["ids"], *ending] for (_, answer), ending in zip(batch, endings, strict=True)]
        target, _ = padded([[BOS, *ids[:-1]] for ids in said], PAD)
        found = runner.stepwise(source, source_length, target)
        for row, ((sample, answer), ids) in enumerate(zip(batch, said, strict=True)):
            distances.append(np.abs(found[row, np.arange(len(ids)), ids] - answer["logprobs"]))
            next_token = sample["next_token"]
            distances.append(np.abs(found[row, 0, next_token["ids"]] - next_token["logprobs"]))
    return float(np.concatenate(distances).max())  # unlike Python's max, it does not pass over NaN


def check_certificate(certificate: dict[str, Any], max_length: int, trained: TrainedModel | None) -> Iterator[str]:
    """What is wrong with the samples themselves: not servable, or not the torch model's answers."""
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
        if trained is not None:
            expected = _sample(trained, sample["source"])
            for name, distance in _distances(sample, expected):
                if not distance <= TORCH_TOLERANCE:
                    yield f"{name} of sample {number}, {sample['source']!r}, is not torch's: off by {distance:.2g}"


def _distances(sample: dict[str, Any], expected: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """(what, how far its log-probabilities are from torch's); infinite where the tokens are others."""
    if sample["source_ids"] != expected["source_ids"]:
        yield "source_ids", np.inf
    for name in ("greedy", "beam", "next_token"):
        if sample[name]["ids"] != expected[name]["ids"]:
            yield name, np.inf
        else:
            yield name, float(np.abs(np.subtract(sample[name]["logprobs"], expected[name]["logprobs"])).max())
