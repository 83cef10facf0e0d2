"""The certificate: sample inputs with the torch model's own answers, which travel with the bundle.

Whoever loads the bundle replays it: each sample's target is forced through the graphs token by token, and every
log-probability must be within the variant's tolerance of torch's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from export.runner import Runner, chunks, padded
from model.checkpoint import TrainedModel
from model.reference import Hypothesis, beam, greedy, next_logprobs
from model.tokenizer import BOS, EOS, PAD

SAMPLES = 16
BEAM = 4
LONGEST = 64  # tokens of a certified answer; one less than max_length, so that an end token can be scored after it
LIKELIEST = 5  # tokens of the next-token distribution that a sample keeps


def make_certificate(trained: TrainedModel, texts: list[str]) -> dict[str, Any]:
    """Answers of the torch model, by the slow reference search, for sources of all lengths among the texts."""
    by_length = sorted(dict.fromkeys(texts), key=lambda text: len(trained.source.encode(text)))
    picked = sorted({round(i * (len(by_length) - 1) / (SAMPLES - 1)) for i in range(SAMPLES)})
    samples = [_sample(trained, by_length[i]) for i in picked]
    return {"torch": torch.__version__, "beam_size": BEAM, "length_penalty": 1.0, "samples": samples}


def _sample(trained: TrainedModel, text: str) -> dict[str, Any]:
    source, limit = trained.source.encode(text), min(LONGEST, trained.config.max_length - 1)
    found = greedy(trained.model, source, limit)
    first = np.array(next_logprobs(trained.model, source, ()))
    likeliest = np.argsort(-first, kind="stable")[:LIKELIEST]
    return {
        "source": text,
        "source_ids": source,
        "greedy": _answer(found),
        "beam": _answer(beam(trained.model, source, BEAM, max_length=limit)[0]),
        "next_token": {"ids": likeliest.tolist(), "logprobs": first[likeliest].tolist()},
    }


def _answer(hypothesis: Hypothesis) -> dict[str, Any]:
    return {
        "ids": list(hypothesis.ids),
        "logprobs": list(hypothesis.logprobs),
        "score": hypothesis.score(1.0),
        "finish_reason": hypothesis.finish_reason,
    }


def drift(certificate: dict[str, Any], runner: Runner) -> float:
    """The largest distance of a variant's log-probabilities from the certificate's."""
    worst = 0.0
    for samples in chunks(certificate["samples"], 8):
        source, source_length = padded([[*sample["source_ids"], EOS] for sample in samples], PAD)
        answers = [sample["greedy"] for sample in samples]
        endings = [[EOS] if answer["finish_reason"] == "stop" else [] for answer in answers]
        said = [[*answer["ids"], *ending] for answer, ending in zip(answers, endings, strict=True)]
        target, _ = padded([[BOS, *ids[:-1]] for ids in said], PAD)
        found = runner.stepwise(source, source_length, target)
        for row, (sample, ids) in enumerate(zip(samples, said, strict=True)):
            mine = found[row, np.arange(len(ids)), ids]
            worst = max(worst, float(np.abs(mine - sample["greedy"]["logprobs"]).max()))
            next_token = sample["next_token"]
            worst = max(worst, float(np.abs(found[row, 0, next_token["ids"]] - next_token["logprobs"]).max()))
    return worst
