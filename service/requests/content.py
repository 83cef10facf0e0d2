"""From the engine's results to the JSON content of answers, shared by HTTP, bulk files and the Python API."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from pydantic_core import to_json

from attendant.service.documents.detection import Detected
from attendant.service.documents.joining import JoinedHypothesis
from attendant.service.engine.search.distributions import top_tokens
from attendant.service.engine.tasks import (
    Distribution,
    Explain,
    Generate,
    Generated,
    Hypothesis,
    Ids,
    Outcome,
    Scored,
)
from attendant.service.errors import ServiceError
from attendant.service.requests.served import ServedModel

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
    tasks: Sequence[Generate | Explain],
    outcomes: Sequence[Outcome],
    logprobs: bool,
    request_id: str = "",
    check: Check = no_check,
    unknown: Mapping[int, list[str]] | None = None,  # by an input's place
    detected: Mapping[int, Detected] | None = None,  # likewise
) -> Json:
    """The answer to tasks of which at least one has a result."""
    results = [outcome for outcome in outcomes if isinstance(outcome, Generated)]
    outputs = [output_content(served, outcome, logprobs, request_id, check) for outcome in outcomes]
    for place, pieces in (unknown or {}).items():
        outputs[place] |= unknown_content(pieces)
    for place, found in (detected or {}).items():
        outputs[place]["detected_language"] = asdict(found)
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
    joined = found if isinstance(found, JoinedHypothesis) else None
    return {
        "text": served.engine.target_tokenizer.decode(found.ids) if joined is None else joined.text,
        "tokens": [served.tokens[index] for index in found.ids],
        **({} if served.readable else {"token_texts": [served.token_texts[index] for index in found.ids]}),
        "score": found.score,
        "logprobs": found.logprobs if logprobs else None,
        "finish_reason": found.finish_reason,
        **terms_content(found),
        **({} if joined is None else {"segments": [asdict(segment) for segment in joined.segments]}),
    }


def terms_content(found: Hypothesis) -> Json:
    """What a hypothesis has of the terms that apply to its source."""
    if not found.terms:
        return {}
    return {"terms_met": [{"source": term.source, "target": term.target, "met": term.met} for term in found.terms]}


def milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
