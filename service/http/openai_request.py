"""A completion as OpenAI's clients ask for it: its fields, and the tasks that it comes to.

What cannot be honoured is refused. The prompt is the source, and a choice is a target of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

from service.engine.tasks import Generate, Ids, NextToken, Options, Task
from service.errors import InvalidFieldError, InvalidJSONError
from service.http.inputs import encode_source
from service.http.models import Served
from service.http.planning import input_seed
from service.http.schemas import ONE_PROBLEM, Request, option, parse
from service.settings import Settings

LARGEST_LOGPROBS = 5
ABSENT = "is not offered here; leave it out"


class BadRequestError(InvalidFieldError):
    """OpenAI answers 400 where the rest of this service answers 422."""

    status = 400


def _listed(prompt: Any) -> Any:
    return [prompt] if isinstance(prompt, str) else prompt


class StreamOptions(Request):
    include_usage: bool = option(False, "end with a chunk that has the usage and no choices", "true or false")


class CompletionRequest(Request):
    model: str = option(..., "the model's name, as GET /v1/models tells it", "the name of a model")
    prompt: Annotated[list[str], BeforeValidator(_listed, json_schema_input_type=str | list[str])] = option(
        ..., "one source text, or several", "a text or a list of texts, at least one; token ids are not taken",
        min_length=1, **ONE_PROBLEM,
    )  # fmt: skip
    n: int | None = option(1, "choices answered for each prompt, best first", "a whole number from 1", ge=1)
    best_of: int | None = option(
        None,
        "the n best of so many samples, or of a beam of this size; null: n",
        "a whole number from n, or null",
        ge=1,
    )
    beam_size: int | None = option(
        None, "hypotheses kept at each step, without a temperature; null: best_of (an extension)",
        "a whole number from 1, or null", unit="hypotheses", ge=1,
    )  # fmt: skip
    length_penalty: float | None = option(
        1.0, "the best have the highest sum of log-probabilities / length ** length_penalty (an extension)",
        "a number from 0 to 10", ge=0, le=10,
    )  # fmt: skip
    max_tokens: int | None = option(
        None, "of a choice, its end token included, and never more than the model's limit; null: that limit",
        "a whole number from 1, or null", unit="tokens", ge=1,
    )  # fmt: skip
    temperature: float | None = option(
        None, "sample from softmax(logits / temperature); 0 or null: no sampling",
        "0, a number from 0.01 to 100, or null", ge=0, le=100,
    )  # fmt: skip
    top_p: float | None = option(
        None, "sample among the likeliest tokens that together have this probability; null: 1",
        "a number above 0, up to 1, or null", gt=0, le=1,
    )  # fmt: skip
    seed: int | None = option(
        None, "of the sampling: the same seed gives the same text, at any load; null: a random one",
        "a whole number of 64 bits, or null", ge=-(2**63), le=2**63 - 1,
    )  # fmt: skip
    logprobs: int | None = option(
        None, "answer each token's log-probability, and those of so many likeliest tokens in its place",
        f"a whole number from 0 to {LARGEST_LOGPROBS}, or null", unit="tokens", ge=0, le=LARGEST_LOGPROBS,
    )  # fmt: skip
    stream: bool | None = option(False, "answer server-sent events", "true or false")
    stream_options: StreamOptions | None = option(
        None, 'for a stream: {"include_usage": true} ends it with the usage', "include_usage, true or false"
    )
    user: str | None = option(None, "whoever asks; not used, and not logged", "a text")
    echo: bool | None = option(False, f"false; true {ABSENT}", "false: repeating the prompt is not offered here")
    suffix: None = option(None, f"null; a text {ABSENT}", "null: text after the completion is not offered here")
    stop: list[str] | None = option(
        None, f"null; a text {ABSENT}", "null: stopping at a text is not offered here", max_length=0
    )
    presence_penalty: float | None = option(0, "0", "0: penalties are not offered here", ge=0, le=0)
    frequency_penalty: float | None = option(0, "0", "0: penalties are not offered here", ge=0, le=0)
    logit_bias: dict[str, float] | None = option(
        None, "null or empty", "null or nothing inside: biases are not offered here", max_length=0
    )


@dataclass(frozen=True)
class Plan:
    """What to ask the engine; `tasks_per_prompt` of the tasks answer each prompt in turn."""

    tasks: list[Generate]
    sources: list[Ids]
    tasks_per_prompt: int
    choices: int  # answered for each prompt
    samples: bool
    alternatives: int | None  # likeliest tokens told for each place; None: not even the token's own log-probability


def read_request(body: bytes) -> CompletionRequest:
    try:
        return parse(CompletionRequest, body)
    except InvalidJSONError:
        raise
    except InvalidFieldError as error:
        hint = " Token ids are not taken." if (error.field or "").startswith("prompt[") else ""
        raise BadRequestError(error.message + hint, error.field) from None


def plan_completion(request: CompletionRequest, served: Served, settings: Settings) -> Plan:
    """The tasks of a request, or an error that tells what cannot be done."""
    samples = bool(request.temperature)
    choices = request.n or 1
    candidates = request.best_of or choices
    beam_size = 1 if samples else request.beam_size or candidates
    _check(request, samples, choices, candidates, beam_size)
    _check_limits(request, served, settings, max(candidates, beam_size))
    sources = _encode(request.prompt, served)
    repeats = candidates if samples else 1
    seeds = _seeds(request, samples, len(sources) * repeats)
    options = [_options(request, served, beam_size, 1 if samples else choices, seed) for seed in seeds]
    tasks = [
        Generate(source=source, options=options[(place * repeats + repeat) % len(options)], stream=bool(request.stream))
        for place, source in enumerate(sources)
        for repeat in range(repeats)
    ]
    _check_price(tasks, served)
    return Plan(tasks, sources, repeats, choices, samples, request.logprobs)


def alternatives_of(source: Ids, ids: Ids, first: int) -> list[NextToken]:
    """The questions what else could have come at each place of a choice from `first` on."""
    return [NextToken(source=source, prefix=ids[:place]) for place in range(first, len(ids))]


def _check(request: CompletionRequest, samples: bool, choices: int, candidates: int, beam_size: int) -> None:
    """Fields that contradict each other."""
    refuse = _refusal
    if request.temperature and request.temperature < 0.01:
        raise refuse("temperature", f"takes 0 or a number from 0.01 to 100, not {request.temperature}.")
    if candidates < choices:
        raise refuse("best_of", f"is {candidates} and n {choices}; best_of must be at least n.")
    if samples and request.beam_size not in (None, 1):
        raise refuse("beam_size", f"is {request.beam_size} with a temperature; sampling keeps no beam, leave one out.")
    if not samples and request.best_of and beam_size != candidates:
        raise refuse("best_of", "is the beam's size where nothing is sampled; leave out best_of or beam_size.")
    if beam_size < choices and not samples:
        raise refuse("n", f"is {choices} and beam_size {beam_size}; without a temperature n is at most beam_size.")
    if not samples and (request.top_p or 1) < 1:
        raise refuse("top_p", f"is {request.top_p} and nothing is sampled; give a temperature above 0 too.")
    if request.echo:
        raise refuse("echo", "takes false: repeating the prompt is not offered here.")
    _check_stream(request, samples, choices, candidates)


def _check_stream(request: CompletionRequest, samples: bool, choices: int, candidates: int) -> None:
    if not request.stream:
        if request.stream_options is not None:
            raise _refusal("stream_options", "is for a stream; leave it out, or set stream to true.")
        return
    if samples and candidates > choices:
        raise _refusal("best_of", f"is {candidates} and n {choices}; the best of several samples cannot be streamed.")
    if not samples and choices > 1:
        raise _refusal("n", f"is {choices}; of a beam only the best can be streamed. Sample, or leave out stream.")


def _check_limits(request: CompletionRequest, served: Served, settings: Settings, rows: int) -> None:
    if len(request.prompt) > settings.max_inputs:
        found = len(request.prompt)
        raise _refusal("prompt", f"has {found} texts; send at most {settings.max_inputs} in a request.")
    most = min(settings.max_beam_size, served.description.max_rows)
    if rows > most:
        field = next(name for name in ("beam_size", "best_of", "n") if (getattr(request, name) or 1) == rows)
        raise _refusal(field, f"takes a whole number from 1 to {most} here, not {rows}.")


def _check_price(tasks: Sequence[Task], served: Served) -> None:
    """A request that could not even wait alone is refused for good, not told to try again."""
    cost, most = sum(task.token_budget for task in tasks), served.description.max_queue_tokens
    if cost > most:
        sentence = (
            f"may take {cost} tokens in all, and the service takes {most} at once; send fewer texts, or lower n, "
            "best_of, beam_size or max_tokens."
        )
        raise _refusal("prompt", sentence)
    if len(tasks) > served.description.max_queue_requests:
        waiting = served.description.max_queue_requests
        raise _refusal("prompt", f"comes to {len(tasks)} texts with its samples; at most {waiting} can wait.")


def _encode(prompts: Sequence[str], served: Served) -> list[Ids]:
    found = []
    for place, text in enumerate(prompts):
        try:
            found.append(encode_source(served.engine, text, "prompt" if len(prompts) == 1 else f"prompt[{place}]"))
        except InvalidFieldError as error:
            raise BadRequestError(error.message, error.field) from None
    return found


def _seeds(request: CompletionRequest, samples: bool, count: int) -> list[int]:
    if not samples:
        return [0]
    seed = secrets.randbits(63) if request.seed is None else request.seed % 2**63
    return [input_seed(seed, place) for place in range(count)]


def _options(request: CompletionRequest, served: Served, beam_size: int, hypotheses: int, seed: int) -> Options:
    return Options(
        beam_size=beam_size,
        num_hypotheses=hypotheses,
        length_penalty=1.0 if request.length_penalty is None else request.length_penalty,
        max_length=min(request.max_tokens or served.max_target_length, served.max_target_length),
        temperature=request.temperature or None,
        top_p=request.top_p if request.temperature else None,
        seed=seed,
    )


def _refusal(field: str, sentence: str) -> BadRequestError:
    return BadRequestError(f"{field} {sentence}", field)
