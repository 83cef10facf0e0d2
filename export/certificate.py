"""The certificate: sample inputs with the torch model's own answers, which travel with the bundle.

An answer has at most 64 tokens and at most max_length - 1, its end token included, so that it can be scored with an end
token after it; one that did not end by then has the finish_reason "length". The tokens that every target of an imported
model starts with are part of its answers, with their log-probabilities, so that the replay covers what the service
decodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from model.checkpoint import TrainedModel
from model.reference import Hypothesis, beam, greedy, next_logprobs
from model.transformer import Transformer

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
    model, start, source = trained.model, tuple(trained.start), trained.source.encode(text)
    limit = max(1, longest_answer(trained) - len(start))
    before = tuple(next_logprobs(model, source, start[:i])[token] for i, token in enumerate(start))

    def whole(found: Hypothesis) -> Hypothesis:
        return Hypothesis((*start, *found.ids), (*before, *found.logprobs), found.finish_reason)

    first = np.array(next_logprobs(model, source, ()))
    top = np.argsort(-first, kind="stable")[:TOP_TOKENS]
    return {
        "source": text,
        "source_ids": source,
        "greedy": _answer(whole(greedy(model, source, limit, start))),
        "beam": _answer(whole(beam(_started(model, start), source, BEAM, max_length=limit)[0])),
        "next_token": {"ids": top.tolist(), "logprobs": first[top].tolist()},
    }


def _started(model: Transformer, start: tuple[int, ...]) -> Any:
    """The model with the `start` tokens inserted after BOS in every target, for a search without such an option."""

    def logits(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        before = torch.tensor([start], dtype=target.dtype)  # (1, start tokens)
        return model(source, torch.cat([target[:, :1], before, target[:, 1:]], dim=1))

    return logits if start else model


def _answer(hypothesis: Hypothesis) -> dict[str, Any]:
    return {
        "ids": list(hypothesis.ids),
        "logprobs": list(hypothesis.logprobs),
        "score": hypothesis.score(1.0),
        "finish_reason": hypothesis.finish_reason,
    }


def check_answers(certificate: dict[str, Any], trained: TrainedModel) -> Iterator[str]:
    """Which of the samples are not the torch model's own answers."""
    for number, sample in enumerate(certificate.get("samples", ())):
        expected = _sample(trained, sample["source"])
        for name, distance in _distances(sample, expected):
            if not distance <= TORCH_TOLERANCE:
                yield f"{name} of sample {number}, {sample['source']!r}, is not torch's: off by {distance:.2g}"


def _distances(sample: dict[str, Any], expected: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """(what, how far its log-probabilities are from torch's); infinitely far if the tokens differ."""
    if sample["source_ids"] != expected["source_ids"]:
        yield "source_ids", np.inf
    for name in ("greedy", "beam", "next_token"):
        if sample[name]["ids"] != expected[name]["ids"]:
            yield name, np.inf
        else:
            yield name, float(np.abs(np.subtract(sample[name]["logprobs"], expected[name]["logprobs"])).max())
