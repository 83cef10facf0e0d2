"""Requests and answers of the API, each field with its meaning, unit and range: OpenAPI is made from these.

Requests are strict: a number is no text, 1.0 is no whole number, an unknown field is refused. Answers are written
straight to JSON and never pass through these models.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from service.errors import InvalidFieldError, InvalidJSONError

LARGEST_SEED = 2**63 - 1
LARGEST_LENGTH = 10**6  # of the schema; the model's own limit is checked with the model at hand


def option(default: Any, about: str, takes: str, *, unit: str = "", **limits: Any) -> Any:
    """A field of a request; `takes` completes the sentence "FIELD takes ..."."""
    extra: dict[str, Any] = {"x-takes": takes, "x-unit": unit}
    return Field(default, description=about, json_schema_extra=extra, **limits)


def value(about: str, unit: str = "") -> Any:
    """A field of an answer."""
    return Field(description=about, json_schema_extra={"x-unit": unit})


class Request(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


class Answer(BaseModel):
    model_config = ConfigDict(protected_namespaces=())


def _listed(inputs: Any) -> Any:
    return [inputs] if isinstance(inputs, str) else inputs


ANY_TEXT = "a text"
ONE_PROBLEM: dict[str, Any] = {"fail_fast": True}  # tells enough of a list of a million numbers
MOST_PROBLEMS = 10  # told of in one answer
TEMPERATURE: dict[str, Any] = {"ge": 0.01, "le": 100.0}


class GenerateRequest(Request):
    inputs: Annotated[list[str], BeforeValidator(_listed, json_schema_input_type=str | list[str])] = option(
        ..., "one source text, or several", "a text or a list of texts, at least one", min_length=1, **ONE_PROBLEM
    )
    beam_size: int = option(
        1, "hypotheses kept at each step; 1 is greedy", "a whole number from 1", unit="hypotheses", ge=1
    )
    num_hypotheses: int = option(
        1, "hypotheses answered for each input, best first: at most beam_size, or as many samples",
        "a whole number from 1", unit="hypotheses", ge=1,
    )  # fmt: skip
    length_penalty: float = option(
        1.0, "score = sum of log-probabilities / length ** length_penalty; 0 leaves the sum",
        "a number from 0 to 10", ge=0, le=10,
    )  # fmt: skip
    max_length: int | None = option(
        None, "of a hypothesis, prefix and end token included; null: the model's limit",
        "a whole number from 1 to the model's limit, or null", unit="tokens", ge=1, le=LARGEST_LENGTH,
    )  # fmt: skip
    min_length: int = option(
        0, "of a hypothesis before its end token may come", "a whole number from 0, below max_length", unit="tokens",
        ge=0, le=LARGEST_LENGTH,
    )  # fmt: skip
    repetition_penalty: float = option(
        1.0, "the log-probability of a token that came before is multiplied by this before the choice",
        "a number from 0.1 to 10", ge=0.1, le=10,
    )  # fmt: skip
    no_repeat_ngram_size: int = option(
        0, "runs of this many tokens come only once; 0: no such rule", "a whole number from 0 to 1000", unit="tokens",
        ge=0, le=1000,
    )  # fmt: skip
    target_prefix: str | None = option(None, "the target of every input starts with this text", "a text, or null")
    temperature: float | None = option(
        None, "sample from softmax(logits / temperature); null: no sampling",
        "a number from 0.01 to 100, and is left out where nothing is to be sampled", **TEMPERATURE,
    )  # fmt: skip
    top_k: int | None = option(
        None, "sample among this many of the likeliest tokens", "a whole number from 1, or null", unit="tokens", ge=1
    )
    top_p: float | None = option(
        None, "sample among the likeliest tokens that together have this probability",
        "a number above 0, up to 1, or null", gt=0, le=1,
    )  # fmt: skip
    seed: int | None = option(
        None, "of the sampling: the same seed gives the same text, at any load; null: a random one",
        "a whole number from 0 to 2**63 - 1, or null", ge=0, le=LARGEST_SEED,
    )  # fmt: skip
    logprobs: bool = option(False, "answer the log-probability of each token", "true or false")
    timeout_ms: int | None = option(
        None, "from arrival; past it the best hypothesis so far is answered; null: the service's setting",
        "a whole number from 1 to 86400000, or null", unit="ms", ge=1, le=86_400_000,
    )  # fmt: skip
    stream: bool = option(False, "answer server-sent events, for one input", "true or false")


class NextTokenRequest(Request):
    source: str = option(..., "the source text", ANY_TEXT)
    prefix: str = option("", "the beginning of the target", ANY_TEXT)
    prefix_tokens: list[str] | None = option(
        None, "the same as tokens, instead of prefix", "a list of tokens, or null", **ONE_PROBLEM
    )
    top_k: int = option(
        10, "how many tokens are answered, likeliest first; 0: the whole vocabulary", "a whole number from 0",
        unit="tokens", ge=0,
    )  # fmt: skip
    temperature: float = option(
        1.0, "the distribution is softmax(logits / temperature)", "a number from 0.01 to 100", **TEMPERATURE
    )
    timeout_ms: int | None = option(
        None, "from arrival; past it 504; null: the service's setting",
        "a whole number from 1 to 86400000, or null", unit="ms", ge=1, le=86_400_000,
    )  # fmt: skip


class ScoreRequest(Request):
    source: str = option(..., "the source text", ANY_TEXT)
    target: str = option(..., "the target text, which may be empty", ANY_TEXT)
    timeout_ms: int | None = option(
        None, "from arrival; past it 504; null: the service's setting",
        "a whole number from 1 to 86400000, or null", unit="ms", ge=1, le=86_400_000,
    )  # fmt: skip


class ReloadRequest(Request):
    bundle: str | None = option(None, "the directory to load; null: the configured one again", "a directory, or null")


class Hypothesis(Answer):
    text: str = value("the target text")
    tokens: list[str] = value("its tokens, without the end token")
    score: float = value("summed log-probability / length ** length_penalty, the end token counted in both", "nats")
    logprobs: list[float] | None = value(
        "of each token, and of the end token where it came; null unless asked for", "nats"
    )
    finish_reason: str = value("stop: the end token came; length: max_length did; deadline: time was up")


class Output(Answer):
    hypotheses: list[Hypothesis] = value("best first; samples in their own order")


class Usage(Answer):
    source_tokens: int = value("of all inputs, without end tokens", "tokens")
    target_tokens: int = value("of all hypotheses answered, with end tokens", "tokens")


class Timing(Answer):
    queue_ms: float = value("waiting, of the input that waited longest", "ms")
    encode_ms: float = value("encoding, of the slowest input", "ms")
    decode_ms: float = value("decoding, of the slowest input", "ms")


class GenerateAnswer(Answer):
    model: str = value("the model's name")
    outputs: list[Output] = value("one for each input, in their order")
    usage: Usage = value("what was read and written")
    timing: Timing = value("where the time went")


class TokenEvent(Answer):
    token: str = value("the token")
    text: str = value("what it adds to the text; empty until the bytes of a character are complete")
    logprob: float = value("of the token", "nats")
    index: int = value("its place in the hypothesis, from 0")


class NextToken(Answer):
    id: int = value("its number in the target vocabulary")
    token: str = value("the token")
    probability: float = value("at the temperature asked for; all of the vocabulary sum to 1")
    logprob: float | None = value("its logarithm; null where the probability is 0", "nats")


class NextTokenAnswer(Answer):
    tokens: list[NextToken] = value("most probable first")
    entropy: float = value("of the distribution over the whole vocabulary", "nats")
    prefix_logprob: float = value("of the prefix, by the model itself", "nats")


class ScoredToken(Answer):
    token: str = value("the token")
    logprob: float = value("given the source and the tokens before it", "nats")


class ScoreAnswer(Answer):
    logprob: float = value("of the whole target, end token included", "nats")
    tokens: list[ScoredToken] = value("each token, the end token last")


class InfoAnswer(Answer):
    version: str = value("of attendant")
    model: str = value("the bundle's name")
    bundle: dict[str, Any] = value("its sizes, variants, special ids and what it was produced by")
    precision: str = value("the variant in use")
    provider: str = value("what computes")
    provider_fallback: str | None = value("why the CPU computes where cuda was to; null: it was not to")
    threads: int = value("of computation")
    lanes: int = value("batches decoded side by side, when there is enough to do")
    limits: dict[str, int] = value("of texts, requests, batches and the queue, in the unit of their name")
    certificate: dict[str, Any] = value("drift from torch at the last start or reload, its tolerance, samples replayed")


class Status(Answer):
    status: str = value("ok, or ready")


class ErrorDetail(Answer):
    type: str = value("the kind of error, from a closed set")
    message: str = value("what to change, as a sentence")
    field: str | None = value("the first field that is wrong; null where none is to blame")


class ErrorAnswer(Answer):
    error: ErrorDetail = value("what went wrong")


AnyRequest = TypeVar("AnyRequest", bound=Request)


def parse(kind: type[AnyRequest], body: bytes) -> AnyRequest:
    """The request in a body, or an error that tells all that is wrong with it."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        failure = error
    problem = failure.errors(include_url=False)[0] if failure.error_count() == 1 else None
    if problem is not None and problem["type"] == "json_invalid":
        return _parse_again(kind, body, str(problem["ctx"]["error"]))
    raise refusal(kind, failure)


def _parse_again(kind: type[AnyRequest], body: bytes, reason: str) -> AnyRequest:
    """A lone surrogate is valid JSON that only the slow parser reads; the text is refused later, by its field."""
    if not body.strip():
        raise InvalidJSONError("The body is empty; it takes a JSON object.")
    try:
        if "hex escape" not in reason and "surrogate" not in reason:
            raise ValueError
        return kind.model_validate(json.loads(body))
    except ValidationError as error:
        raise refusal(kind, error) from None
    except (ValueError, RecursionError):
        raise InvalidJSONError(f"The body is not JSON: {reason}.") from None


def refusal(kind: type[Request], failure: ValidationError) -> InvalidFieldError:
    """One error with a sentence for each problem; `field` is the first one's."""
    fields = ", ".join(kind.model_fields)
    if failure.error_count() > 100:  # making a list of them would take its time
        return InvalidFieldError(f"The request has {failure.error_count()} wrong or unknown fields; it takes {fields}.")
    problems = failure.errors(include_url=False)
    if problems[0]["type"] in ("model_type", "dict_type"):
        return InvalidFieldError(f"The body takes a JSON object, not {_shown(problems[0]['input'])}.")
    if not problems[0]["loc"]:
        return InvalidFieldError(f"A field's name is not valid Unicode; the request takes {fields}.")
    sentences = list(dict.fromkeys(_sentence(kind, problem) for problem in problems))
    more = f" And {len(sentences) - MOST_PROBLEMS} more." if len(sentences) > MOST_PROBLEMS else ""
    return InvalidFieldError(" ".join(sentences[:MOST_PROBLEMS]) + more, _path(problems[0]["loc"]))


def _sentence(kind: type[Request], problem: Any) -> str:
    location = problem["loc"]
    name, path = location[0], _path(location)
    if problem["type"] == "extra_forbidden":
        return f"{path} is no field of this request; it takes {', '.join(kind.model_fields)}."
    takes = ANY_TEXT if len(location) > 1 else _takes(kind, name)
    if problem["type"] == "missing":
        return f"{path} is missing; it takes {takes}."
    return f"{path} takes {takes}, not {_shown(problem['input'])}."


def _takes(kind: type[Request], name: str) -> str:
    extra: Any = kind.model_fields[name].json_schema_extra
    return str(extra["x-takes"])


def _path(location: tuple[str | int, ...]) -> str:
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return ascii("".join(parts).removeprefix("."))[1:-1][:100]


def _shown(found: Any) -> str:
    """A value as JSON would have it, cut short."""
    try:
        text = json.dumps(found)
    except (TypeError, ValueError, RecursionError):
        text = ascii(found)
    return text if len(text) <= 60 else text[:57] + "..."
