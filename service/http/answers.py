"""From the engine's answers to the JSON of the API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from pydantic_core import to_json

from service.engine.tasks import Array, Distribution, Generate, Generated, Hypothesis, Ids, NewTokens, Scored
from service.http.models import Served

Json = dict[str, Any]
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what a byte-level tokenizer writes for half a character


def encode(answer: Json) -> bytes:
    return to_json(answer, inf_nan_mode="null")


def generate_answer(served: Served, tasks: Sequence[Generate], answers: Sequence[Generated], logprobs: bool) -> Json:
    outputs = [
        {"hypotheses": [_hypothesis(served, hypothesis, logprobs) for hypothesis in answer.hypotheses]}
        for answer in answers
    ]
    return {
        "model": served.name,
        "outputs": outputs,
        "usage": {
            "source_tokens": sum(len(task.source) for task in tasks),
            "target_tokens": sum(len(h.logprobs) for answer in answers for h in answer.hypotheses),
        },
        "timing": {
            "queue_ms": _ms(max(answer.timing.queue for answer in answers)),
            "encode_ms": _ms(max(answer.timing.encode for answer in answers)),
            "decode_ms": _ms(max(answer.timing.decode for answer in answers)),
        },
    }


def next_token_answer(served: Served, answer: Distribution, top_k: int, temperature: float) -> Json:
    scaled = answer.logprobs.astype(np.float64) / temperature  # (V,)
    scaled -= scaled.max()
    logprobs = scaled - np.log(np.exp(scaled).sum())
    probabilities = np.exp(logprobs)
    likely = probabilities > 0
    best = _likeliest(logprobs, top_k or len(logprobs))
    rows = zip(best.tolist(), probabilities[best].tolist(), logprobs[best].tolist(), strict=True)
    return {
        "tokens": [
            {"id": index, "token": served.tokens[index], "probability": probability, "logprob": logprob}
            for index, probability, logprob in rows
        ],
        "entropy": max(0.0, -float((probabilities[likely] * logprobs[likely]).sum())),
        "prefix_logprob": sum(answer.prefix_logprobs, 0.0),
    }


def score_answer(served: Served, target: Ids, answer: Scored) -> Json:
    names = [served.tokens[index] for index in (*target, served.end)]
    return {
        "logprob": sum(answer.logprobs),
        "tokens": [{"token": name, "logprob": logprob} for name, logprob in zip(names, answer.logprobs, strict=True)],
    }


class StreamedText:
    """Token events whose texts, one after the other, are the text of the answer.

    A token that ends inside a character waits for the next one.
    """

    def __init__(self, served: Served) -> None:
        self._served = served
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._sent = 0
        self._text = ""

    def add(self, new: NewTokens) -> Iterator[Json]:
        for index, logprob in zip(new.ids, new.logprobs, strict=True):
            self._ids.append(index)
            self._logprobs.append(logprob)
            text = self._served.engine.target_tokenizer.decode(self._ids)
            if not text.endswith(UNFINISHED):
                yield from self._release(text)

    def finish(self, best: Hypothesis) -> Iterator[Json]:
        """What of the answer was not sent yet."""
        start = len(self._ids)
        yield from self.add(NewTokens(0, best.ids[start:], best.logprobs[start : len(best.ids)]))
        yield from self._release(self._served.engine.target_tokenizer.decode(self._ids))

    def _release(self, text: str) -> Iterator[Json]:
        last = len(self._ids) - 1
        for place in range(self._sent, len(self._ids)):
            piece = text[len(self._text) :] if place == last else ""
            token = self._served.tokens[self._ids[place]]
            yield {"token": token, "text": piece, "logprob": self._logprobs[place], "index": place}
        self._sent, self._text = len(self._ids), text


def _hypothesis(served: Served, found: Hypothesis, logprobs: bool) -> Json:
    return {
        "text": served.engine.target_tokenizer.decode(found.ids),
        "tokens": [served.tokens[index] for index in found.ids],
        "score": found.score,
        "logprobs": found.logprobs if logprobs else None,
        "finish_reason": found.finish_reason,
    }


def _likeliest(logprobs: Array, count: int) -> Array:
    """Ids of the `count` likeliest, likeliest first, the smaller id first among equals."""
    if count >= len(logprobs):
        return np.argsort(-logprobs, kind="stable")
    best = np.sort(np.argpartition(-logprobs, count - 1)[:count])
    return best[np.argsort(-logprobs[best], kind="stable")]


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
