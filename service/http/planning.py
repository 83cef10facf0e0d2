"""From a request to tasks for the engine; what a schema cannot check is checked here, all at once."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from service.engine.tasks import Generate, NextToken, Options, Score, Task
from service.errors import InvalidFieldError
from service.http.inputs import encode_source, encode_target
from service.http.models import Served
from service.http.schemas import MOST_PROBLEMS, GenerateRequest, NextTokenRequest, ScoreRequest
from service.settings import Settings

Problem = tuple[str, str]  # field, sentence


def deadline(timeout_ms: int | None, arrival: float, settings: Settings) -> float | None:
    """By time.monotonic(), or None."""
    timeout_ms = settings.timeout_ms if timeout_ms is None else timeout_ms
    return arrival + timeout_ms / 1000 if timeout_ms else None


def plan_generate(request: GenerateRequest, served: Served, settings: Settings) -> list[Generate]:
    _refuse([*_sizes(request, served, settings), *_combinations(request)])
    engine, max_length = served.engine, request.max_length or served.max_target_length
    prefix = encode_target(engine, request.target_prefix or "", "target_prefix", max_length)
    sources = []
    problems: list[Problem] = []
    for place, text in enumerate(request.inputs):
        field = "inputs" if len(request.inputs) == 1 else f"inputs[{place}]"
        try:
            sources.append(encode_source(engine, text, field))
        except InvalidFieldError as error:
            problems.append((field, error.message))
    _refuse(problems)
    seeds = _seeds(request)
    options = [_options(request, max_length, len(served.tokens), seed) for seed in seeds]
    tasks = [
        Generate(source=source, options=options[place % len(options)], prefix=prefix, stream=request.stream)
        for place, source in enumerate(sources)
    ]
    _refuse(_price(tasks, served))
    return tasks


def plan_next_token(request: NextTokenRequest, served: Served) -> NextToken:
    if request.prefix and request.prefix_tokens is not None:
        raise InvalidFieldError("prefix and prefix_tokens are both given; leave one out.", "prefix_tokens")
    source = encode_source(served.engine, request.source, "source")
    if request.prefix_tokens is not None:
        return NextToken(source=source, prefix=encode_target(served.engine, request.prefix_tokens, "prefix_tokens"))
    return NextToken(source=source, prefix=encode_target(served.engine, request.prefix, "prefix"))


def plan_score(request: ScoreRequest, served: Served) -> Score:
    source = encode_source(served.engine, request.source, "source")
    return Score(source=source, target=encode_target(served.engine, request.target, "target"))


def input_seed(seed: int, place: int) -> int:
    """The seed of an input by its place: the request's own for the first, scattered for the others."""
    if place == 0:
        return seed
    mixed = (seed + place * 0x9E3779B97F4A7C15) % 2**64
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
    return (mixed ^ (mixed >> 31)) % 2**63


def _seeds(request: GenerateRequest) -> list[int]:
    if request.temperature is None:
        return [0]
    seed = secrets.randbits(63) if request.seed is None else request.seed
    return [input_seed(seed, place) for place in range(len(request.inputs))]


def _options(request: GenerateRequest, max_length: int, vocabulary: int, seed: int) -> Options:
    return Options(
        beam_size=request.beam_size,
        num_hypotheses=request.num_hypotheses,
        length_penalty=request.length_penalty,
        max_length=max_length,
        min_length=request.min_length,
        repetition_penalty=request.repetition_penalty,
        no_repeat_ngram_size=request.no_repeat_ngram_size,
        temperature=request.temperature,
        top_k=None if request.top_k is None else min(request.top_k, vocabulary),
        top_p=request.top_p,
        seed=seed,
    )


def _sizes(request: GenerateRequest, served: Served, settings: Settings) -> list[Problem]:
    """What is over a limit of the service or of the model."""
    problems = []
    if len(request.inputs) > settings.max_inputs:
        sentence = f"inputs has {len(request.inputs)} texts; send at most {settings.max_inputs} in a request."
        problems.append(("inputs", sentence))
    most = min(settings.max_beam_size, served.description.max_rows)
    for field, found in (("beam_size", request.beam_size), ("num_hypotheses", request.num_hypotheses)):
        if found > most:
            problems.append((field, f"{field} takes a whole number from 1 to {most} here, not {found}."))
    longest = served.max_target_length
    if request.max_length is not None and request.max_length > longest:
        sentence = f"max_length takes a whole number from 1 to {longest} with this model, not {request.max_length}."
        problems.append(("max_length", sentence))
    limit = longest if request.max_length is None else request.max_length
    if request.min_length >= limit:
        sentence = (
            f"min_length is {request.min_length}; it must be below max_length, {limit}, to leave room for the end."
        )
        problems.append(("min_length", sentence))
    return problems


def _combinations(request: GenerateRequest) -> list[Problem]:
    """Fields that contradict each other."""
    problems = []
    if request.temperature is None:
        if request.num_hypotheses > request.beam_size:
            sentence = (
                f"num_hypotheses is {request.num_hypotheses} and beam_size {request.beam_size}; without temperature "
                "at most beam_size hypotheses can be answered."
            )
            problems.append(("num_hypotheses", sentence))
        for field in ("top_k", "top_p"):
            if getattr(request, field) is not None:
                problems.append((field, f"{field} is for sampling; give a temperature too, or leave {field} out."))
    elif request.beam_size > 1:
        sentence = f"beam_size is {request.beam_size} with a temperature; sampling takes beam_size 1, or leave one out."
        problems.append(("beam_size", sentence))
    if request.stream and len(request.inputs) > 1:
        problems.append(("stream", f"stream takes one input, not {len(request.inputs)}; send a request for each."))
    if request.stream and request.temperature is not None and request.num_hypotheses > 1:
        problems.append(("stream", "stream takes one sample; leave num_hypotheses out, or send a request for each."))
    return problems


def _price(tasks: Sequence[Task], served: Served) -> list[Problem]:
    """A request that could not even wait alone is refused for good, not told to try again."""
    cost, most = sum(task.token_budget for task in tasks), served.description.max_queue_tokens
    if cost > most:
        sentence = (
            f"The request may take {cost} tokens (inputs x hypotheses x max_length, and the sources); the service "
            f"takes {most} at once. Send fewer inputs, or lower beam_size or max_length."
        )
        return [("inputs", sentence)]
    if len(tasks) > served.description.max_queue_requests:
        return [("inputs", f"inputs has {len(tasks)} texts; at most {served.description.max_queue_requests} can wait.")]
    return []


def _refuse(problems: list[Problem]) -> None:
    if problems:
        sentences = [sentence for _, sentence in problems[:MOST_PROBLEMS]]
        if len(problems) > MOST_PROBLEMS:
            sentences.append(f"And {len(problems) - MOST_PROBLEMS} more.")
        raise InvalidFieldError(" ".join(sentences), problems[0][0])
