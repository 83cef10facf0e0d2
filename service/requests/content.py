"""From the engine's results to the JSON content of answers, shared by HTTP, bulk files and the Python API."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from pydantic_core import to_json

from attendant.service.engine.search.distributions import top_tokens
from attendant.service.engine.tasks import (
    Distribution,
    Generate,
    Generated,
    Hypothesis,
    Ids,
    NewTokens,
    Outcome,
    Scored,
    TokenLogprobs,
)
from attendant.service.errors import ServiceError
from attendant.service.requests.served import ServedModel
from attendant.service.text.tokenizer import UNFINISHED

BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")  # SentencePiece's, for a byte of a character that it lacks
log = logging.getLogger("attendant")

Json = dict[str, Any]
Check = Callable[[], None]  # raises once nobody waits for the answer that is being built
PART = 256  # elements that are encoded at once; meanwhile no other Python thread runs


def no_check() -> None:
    """For answers that are built at once."""


def encode(content: Any) -> bytes:
    return to_json(content, inf_nan_mode="null")


def encode_long(content: Json, check: Check) -> list[bytes]:
    """The same bytes as `encode`, in parts: elements of lists and iterators some at a time, with a check in between."""
    parts: list[bytes] = []
    for name, value in content.items():
        parts.append((b"," if parts else b"{") + encode(name) + b":")
        parts += _encode_elements(value, check) if isinstance(value, list | Iterator) else [encode(value)]
    return [*parts, b"}"]


def _encode_elements(values: Iterable[Any], check: Check) -> Iterator[bytes]:
    elements, before = iter(values), b"["
    while part := list(islice(elements, PART)):
        check()
        yield before + encode(part)[1:-1]
        before = b","
    yield b"[]" if before == b"[" else b"]"


def error_content(error: ServiceError) -> Json:
    return {"type": error.type, "message": error.message, "field": error.field}


def opaque_error(request_id: str) -> ServiceError:
    """The error that a client gets for an internal failure; the log has the details."""
    return ServiceError(f"Something went wrong in the service; its log tells more under request id {request_id}.")


def generate_content(
    served: ServedModel,
    tasks: Sequence[Generate],
    outcomes: Sequence[Outcome],
    logprobs: bool,
    request_id: str = "",
    check: Check = no_check,
    unknown: Mapping[int, list[str]] | None = None,  # by an input's place
) -> Json:
    """The answer to tasks of which at least one has a result."""
    results = [outcome for outcome in outcomes if isinstance(outcome, Generated)]
    outputs = [output_content(served, outcome, logprobs, request_id, check) for outcome in outcomes]
    for place, pieces in (unknown or {}).items():
        outputs[place] |= unknown_content(pieces)
    return {
        "model": served.name,
        "outputs": outputs,
        "usage": {
            "source_tokens": sum(len(task.source) for task in tasks),
            "target_tokens": sum(len(h.logprobs) for result in results for h in result.hypotheses),
        },
        "timing": {
            "queue_ms": milliseconds(max(result.timing.queue for result in results)),
            "encode_ms": milliseconds(max(result.timing.encode for result in results)),
            "decode_ms": milliseconds(max(result.timing.decode for result in results)),
        },
    }


def unknown_content(pieces: list[str]) -> Json:
    """The mark of a source with what the vocabulary lacks."""
    return {"unknown": pieces} if pieces else {}


def output_content(
    served: ServedModel, outcome: Outcome, logprobs: bool, request_id: str = "", check: Check = no_check
) -> Json:
    check()
    if isinstance(outcome, Generated):
        return {"hypotheses": [hypothesis_content(served, hypothesis, logprobs) for hypothesis in outcome.hypotheses]}
    assert isinstance(outcome, Exception)
    if not isinstance(outcome, ServiceError):
        log.error("an input of request %s failed", request_id, exc_info=outcome)
        outcome = opaque_error(request_id)
    return {"hypotheses": [], "error": error_content(outcome)}


def next_token_content(served: ServedModel, result: Distribution, top_k: int, temperature: float) -> Json:
    """`tokens` is an iterator: a whole vocabulary is never held as objects."""
    top = top_tokens(result.logprobs, top_k, temperature)
    return {
        "tokens": (
            {
                "id": index,
                "token": served.tokens[index],
                "text": served.token_texts[index],
                "probability": probability,
                "logprob": logprob,
            }
            for index, probability, logprob in zip(top.ids, top.probabilities, top.logprobs, strict=True)
        ),
        "entropy": top.entropy,
        "prefix_logprob": sum(result.prefix_logprobs, 0.0),
    }


def score_content(served: ServedModel, target: Ids, result: Scored) -> Json:
    return {
        "logprob": sum(result.logprobs),
        "tokens": [
            {"token": served.tokens[index], "text": served.token_texts[index], "logprob": logprob}
            for index, logprob in zip((*target, served.end), result.logprobs, strict=True)
        ],
    }


def hypothesis_content(served: ServedModel, found: Hypothesis, logprobs: bool) -> Json:
    return {
        "text": served.engine.target_tokenizer.decode(found.ids),
        "tokens": [served.tokens[index] for index in found.ids],
        **({} if served.readable else {"token_texts": [served.token_texts[index] for index in found.ids]}),
        "score": found.score,
        "logprobs": found.logprobs if logprobs else None,
        "finish_reason": found.finish_reason,
    }


def milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


class StreamedText:
    """Token events whose texts, joined, are the text of the answer.

    A token that ends inside a character is held back until the next one. What a token adds to the text is found in the
    text of a window, which begins with the tokens that were released before it: it depends on no earlier ones.
    """

    def __init__(self, served: ServedModel) -> None:
        self._served = served
        self.ids: list[int] = []
        self._logprobs: list[float] = []
        self._sent = 0  # tokens
        self._length = 0  # of the text that was sent
        self._window = 0  # the first token of the window
        self._seen = 0  # length of that part of the window's text that was sent
        self.top_logprobs: list[TokenLogprobs] = []  # of each token so far, where they were recorded

    def add(self, new: NewTokens) -> Iterator[Json]:
        self.top_logprobs += new.top_logprobs
        for index, logprob in zip(new.ids, new.logprobs, strict=True):
            self.ids.append(index)
            self._logprobs.append(logprob)
            text = self._decode(self._window)
            if not text.endswith(UNFINISHED):
                released = self._sent
                yield from self._release(text[self._seen :])
                self._length += len(text) - self._seen
                self._move_window(released, len(text))

    def _decode(self, first: int) -> str:
        return self._served.engine.target_tokenizer.decode(self.ids[first:])

    def _move_window(self, first: int, length: int) -> None:
        """Begin the window with a token that is released, unless tokens before that may change what follows.

        They may if all since are without a text, as the space at the beginning of a text is left out; and inside a run
        of bytes, which is one if all of it is valid. `length` is that of the present window's text.
        """
        text = "" if self._is_byte(first) else self._decode(first)
        self._window, self._seen = (first, len(text)) if text else (self._window, length)

    def _is_byte(self, place: int) -> bool:
        return BYTE_TOKEN.fullmatch(self._served.tokens[self.ids[place]]) is not None

    def finish(self, best: Hypothesis) -> Iterator[Json]:
        """The events of the answer that were not sent yet."""
        new = slice(len(self.ids), len(best.ids))
        yield from self.add(NewTokens(0, best.ids[new], best.logprobs[new], best.top_logprobs[new]))
        yield from self._release(self._decode(0)[self._length :])

    def _release(self, text: str) -> Iterator[Json]:
        """The events of the tokens that are held back, the last of which has all of this text."""
        last = len(self.ids) - 1
        for place in range(self._sent, len(self.ids)):
            token = self._served.tokens[self.ids[place]]
            piece = text if place == last else ""
            yield {"token": token, "text": piece, "logprob": self._logprobs[place], "index": place}
        self._sent = len(self.ids)
