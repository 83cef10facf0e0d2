"""The certificate: sample inputs with the torch model's own answers, which travel with the bundle.

An answer has at most 64 tokens and at most max_length - 1, its end token included, so that it can be scored with an end
token after it; one that did not end by then has the finish_reason "length". The tokens that every target of an imported
model starts with are part of its answers, with their log-probabilities, so that the replay covers what the service
decodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import torch

from attendant.export.bundle import BundleError
from attendant.export.graphs.graphs import sizes_of
from attendant.export.make.budget import Clock
from attendant.export.verify.compare import possible
from attendant.export.verify.double import Double
from attendant.export.verify.extent import weight_bytes
from attendant.export.verify.inputs import quoted
from attendant.export.verify.rounding import with_rounding
from attendant.model.checkpoint import TrainedModel
from attendant.model.search.decode import decode_all
from attendant.model.search.reference import Hypothesis, beam, greedy, next_logprobs
from attendant.model.text.tokenizer import BOS, EOS

SAMPLES = 16
BEAM = 4
LONGEST = 64  # tokens of a certified answer
FEW, LARGE = 4, 100 * 2**20  # answers that f64 computes of models with more bytes of weights than this
FEWEST_TOKENS = 8  # that are searched again
TOP_TOKENS = 5  # tokens of the next-token distribution that a sample keeps
TORCH_TOLERANCE = 1e-4  # nats, between the certificate and torch itself, beside torch's own rounding


def make_certificate(trained: TrainedModel, texts: list[str]) -> dict[str, Any]:
    """Answers of the torch model for sources of all lengths among the texts."""
    by_length = sorted(dict.fromkeys(texts), key=lambda text: len(trained.source.encode(text)))
    picked = sorted({round(i * (len(by_length) - 1) / (SAMPLES - 1)) for i in range(SAMPLES)})
    return {
        "torch": torch.__version__,
        "beam_size": BEAM,
        "length_penalty": 1.0,
        "max_length": longest_answer(trained),
        "samples": make_samples(trained, [by_length[i] for i in picked]),
    }


def longest_answer(trained: TrainedModel) -> int:
    """Tokens of an answer, its end token included, that leave room for an end token to be scored."""
    return min(LONGEST, int(trained.config.max_length) - 1)


def make_samples(trained: TrainedModel, texts: list[str]) -> list[dict[str, Any]]:
    """Each text's answers, by the batched search; their log-probabilities are of one whole pass, without a cache."""
    sources = [trained.source.encode(text) for text in texts]
    first = [_first_logprobs(trained, text, source) for text, source in zip(texts, sources, strict=True)]
    limit = most_tokens(trained)
    by_search = {
        name: decode_all(
            trained.model, sources, size, max_length=limit + len(trained.start), start=trained.start, shows=False
        )
        for name, size in (("greedy", 1), ("beam", BEAM))
    }
    found = []
    for number, (text, source) in enumerate(zip(texts, sources, strict=True)):
        top = np.argsort(-first[number], kind="stable")[:TOP_TOKENS]
        answers = {name: scored(trained, source, ids[number], limit) for name, ids in by_search.items()}
        found.append(
            {
                "source": text,
                "source_ids": source,
                **{name: _answer(answer) for name, answer in answers.items()},
                "next_token": {"ids": top.tolist(), "logprobs": first[number][top].tolist()},
            }
        )
    return found


def _first_logprobs(trained: TrainedModel, text: str, source: list[int]) -> np.ndarray[Any, Any]:
    first = np.array(next_logprobs(trained.model, source, ()))
    if np.isnan(first).any():
        raise BundleError(
            f"the model computes NaN for the source {quoted(text)}, as its values overflow; train it again."
        )
    return first


def scored(trained: TrainedModel, source: list[int], ids: list[int], limit: int) -> Hypothesis:
    """An answer, the start tokens before it, with the log-probability of each token by one pass over all of it."""
    ends = len(ids) < limit
    whole = [*trained.start, *ids, *([EOS] if ends else [])]
    with torch.inference_mode():
        logits = trained.model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *whole[:-1]]]))
        logprobs = logits[0].double().log_softmax(-1)[torch.arange(len(whole)), torch.tensor(whole)]
    return Hypothesis((*trained.start, *ids), tuple(logprobs.tolist()), "stop" if ends else "length")


def search_again(
    certificate: dict[str, Any], trained: TrainedModel, tokens: int | None = None, seconds: float = np.inf
) -> Iterator[str | None]:
    """For each sample, shortest answers first: None if the slow reference search finds no better, or else a problem.

    With fewer `tokens` than an answer may have, both searches stop there. It ends when the processor seconds are over,
    after one sample at least. After start tokens only greedy answers are searched: the batched beam search counts them
    in an answer's length, and the reference does not.
    """
    clock, start, limit = Clock(), tuple(trained.start), most_tokens(trained)
    short = tokens is not None and tokens < limit
    limit = min(limit, tokens or limit)
    numbered = sorted(enumerate(certificate["samples"]), key=lambda item: len(item[1]["beam"]["ids"]))
    for number, sample in numbered:
        source, worse = sample["source_ids"], None
        answers = {"greedy": greedy(trained.model, source, limit, start)}
        if not start:
            answers["beam"] = beam(trained.model, source, BEAM, max_length=limit)[0]
        for name, found in answers.items():
            whole = scored(trained, source, list(found.ids), limit)
            held = _searched(trained, source, BEAM if name == "beam" else 1, limit) if short else sample[name]
            distance = abs(whole.score(1.0) - held["score"])
            if list(whole.ids) != held["ids"] and not distance <= TORCH_TOLERANCE:
                worse = f"{name} of sample {number}, {quoted(sample['source'])}, is not what the reference search finds"
        yield worse
        if clock.seconds() >= seconds:
            return


def _searched(trained: TrainedModel, source: list[int], beam_size: int, limit: int) -> dict[str, Any]:
    whole = limit + len(trained.start)
    [ids] = decode_all(trained.model, [source], beam_size, max_length=whole, start=trained.start, shows=False)
    return _answer(scored(trained, source, ids, limit))


def most_tokens(trained: TrainedModel) -> int:
    """Of an answer without its start tokens."""
    return max(1, longest_answer(trained) - len(trained.start))


def tokens_in(seconds: float, trained: TrainedModel, source: list[int]) -> int:
    """As many tokens as the reference search can decode in this time, for one source; at least FEWEST_TOKENS."""
    clock, most = Clock(), most_tokens(trained)
    next_logprobs(trained.model, source, tuple([EOS] * min(FEWEST_TOKENS, most)))
    affordable = int(seconds / max(clock.seconds(), 1e-9) / (BEAM + 1))
    return min(most, max(FEWEST_TOKENS, affordable))


def _answer(hypothesis: Hypothesis) -> dict[str, Any]:
    return {
        "ids": list(hypothesis.ids),
        "logprobs": list(hypothesis.logprobs),
        "score": hypothesis.score(1.0),
        "finish_reason": hypothesis.finish_reason,
    }


def own_rounding(certificate: dict[str, Any], trained: TrainedModel) -> float:
    """The largest difference between torch's f32 and f64, in any log-probability along the certified answers.

    Of a large model along some of them: the fewer, the less it can widen a tolerance.
    """
    distances = []
    large = weight_bytes(sizes_of(trained.config)) > LARGE
    for sample in certificate["samples"][:: SAMPLES // FEW if large else 1]:
        source = torch.tensor([[*sample["source_ids"], EOS]])
        for answer in (sample["greedy"],) if large else (sample["greedy"], sample["beam"]):
            target = torch.tensor([[BOS, *answer["ids"]][: len(answer["logprobs"])]])
            with torch.inference_mode():
                single = trained.model(source, target).double().log_softmax(-1)
                with Double():
                    double = trained.model(source, target).log_softmax(-1)
            distances.append(np.abs(possible(single.numpy()) - possible(double.numpy())).max())
    return float(np.max(distances))


def check_answers(certificate: dict[str, Any], trained: TrainedModel) -> Iterator[str]:
    """Which of the samples are not the torch model's own answers; torch rounds otherwise on another processor."""

    @cache
    def allowed() -> float:
        return with_rounding(TORCH_TOLERANCE, own_rounding(certificate, trained))

    samples = certificate.get("samples", [])
    again = make_samples(trained, [sample["source"] for sample in samples])
    for number, (sample, expected) in enumerate(zip(samples, again, strict=True)):
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
