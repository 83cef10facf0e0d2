"""The certificate: sample inputs with the torch model's own answers, which travel with the bundle.

An answer has at most 64 tokens and at most max_length - 1, its end token included, so that it can be scored with an end
token after it; one that did not end by then has the finish_reason "length". The tokens that every target of an imported
model starts with are part of its answers, with their log-probabilities, so that the replay covers what the service
decodes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import torch

from attendant.export.bundle import BundleError
from attendant.export.verify.compare import possible
from attendant.export.verify.inputs import quoted
from attendant.export.verify.rounding import with_rounding
from attendant.model.checkpoint import TrainedModel
from attendant.model.search.reference import Hypothesis, beam, greedy, next_logprobs
from attendant.model.text.tokenizer import BOS, EOS

SAMPLES = 16
BEAM = 4
LONGEST = 64  # tokens of a certified answer
TOP_TOKENS = 5  # tokens of the next-token distribution that a sample keeps
TORCH_TOLERANCE = 1e-4  # nats, between the certificate and torch itself, beside torch's own rounding


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
    first = np.array(next_logprobs(model, source, ()))
    if np.isnan(first).any():
        raise BundleError(
            f"the model computes NaN for the source {quoted(text)}, as its values overflow; train it again."
        )
    limit = max(1, longest_answer(trained) - len(start))
    before = tuple(next_logprobs(model, source, start[:i])[token] for i, token in enumerate(start))

    def whole(found: Hypothesis) -> Hypothesis:
        return Hypothesis((*start, *found.ids), (*before, *found.logprobs), found.finish_reason)

    top = np.argsort(-first, kind="stable")[:TOP_TOKENS]
    return {
        "source": text,
        "source_ids": source,
        "greedy": _answer(whole(greedy(model, source, limit, start))),
        "beam": _answer(whole(beam(model, source, BEAM, max_length=limit, start=start)[0])),
        "next_token": {"ids": top.tolist(), "logprobs": first[top].tolist()},
    }


def _answer(hypothesis: Hypothesis) -> dict[str, Any]:
    return {
        "ids": list(hypothesis.ids),
        "logprobs": list(hypothesis.logprobs),
        "score": hypothesis.score(1.0),
        "finish_reason": hypothesis.finish_reason,
    }


def own_rounding(certificate: dict[str, Any], trained: TrainedModel) -> float:
    """The largest difference between torch's f32 and f64, in any log-probability along the certified answers."""
    exact, distances = copy.deepcopy(trained.model).double(), []
    for sample in certificate["samples"]:
        source = torch.tensor([[*sample["source_ids"], EOS]])
        for answer in (sample["greedy"], sample["beam"]):
            target = torch.tensor([[BOS, *answer["ids"]][: len(answer["logprobs"])]])
            with torch.inference_mode():
                single, double = (model(source, target).double().log_softmax(-1) for model in (trained.model, exact))
            distances.append(np.abs(possible(single.numpy()) - possible(double.numpy())).max())
    return float(np.max(distances))


def check_answers(certificate: dict[str, Any], trained: TrainedModel) -> Iterator[str]:
    """Which of the samples are not the torch model's own answers; torch rounds otherwise on another processor."""

    @cache
    def allowed() -> float:
        return with_rounding(TORCH_TOLERANCE, own_rounding(certificate, trained))

    for number, sample in enumerate(certificate.get("samples", ())):
        expected = _sample(trained, sample["source"])
        for name, distance in _distances(sample, expected):
            near = distance <= TORCH_TOLERANCE or (np.isfinite(distance) and distance <= allowed())
            if not near:
                yield f"{name} of sample {number}, {quoted(sample['source'])}, is not torch's: off by {distance:.2g}"


def _distances(sample: dict[str, Any], expected: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """(what, how far its log-probabilities are from torch's); infinitely far if the tokens differ."""
    if sample["source_ids"] != expected["source_ids"]:
        yield "source_ids", np.inf
    for name in ("greedy", "beam", "next_token"):
        if sample[name]["ids"] != expected[name]["ids"]:
            yield name, np.inf
        else:
            yield name, float(np.abs(np.subtract(sample[name]["logprobs"], expected[name]["logprobs"])).max())
