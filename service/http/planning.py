"""From a request of either dialect to tasks for the engine; what a schema cannot check is checked here, all at once.

Both dialects become a `Generation`, of which `_tasks` makes tasks. What the queue can hold is checked by the engine.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from service.engine.tasks import Generate, NextToken, Options, Score
from service.errors import InvalidFieldError
from service.http.defaults import fitting_defaults
from service.http.inputs import encode_source, encode_target
from service.http.models import ServedModel
from service.http.openai_schemas import CompletionRequest
from service.http.schemas import LOWEST_TEMPERATURE, GenerateRequest, NextTokenRequest, ScoreRequest
from service.http.validation import combined_error
from service.languages import Chosen
from service.settings import Settings

SEEDS = 2**63  # how many there are

Problem = tuple[str, str]  # field, sentence


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What is to be decoded, in whichever dialect it was asked for."""

    texts: Sequence[str]
    field_name: str  # of the field that has the texts
    options: Options
    seed: int | None = None  # None: a random one
    tasks_per_text: int = 1
    target_prefix: str = ""
    languages: Chosen = dataclasses.field(default_factory=Chosen)
    allow_unknown: bool = False
    stream: bool = False
    top_logprobs: int = 0


@dataclass(frozen=True)
class CompletionPlan:
    """The tasks of a completion; `tasks_per_prompt` of them answer each prompt in turn."""

    tasks: list[Generate]
    tasks_per_prompt: int
    choices: int  # answered for each prompt
    logprobs: int | None  # most probable tokens told for each place; None: not even the token's own log-probability

    @property
    def prompt_tokens(self) -> int:
        return sum(len(task.source) for task in self.tasks[:: self.tasks_per_prompt])


def deadline(timeout_ms: int | None, arrival: float, settings: Settings) -> float | None:
    """By time.monotonic(), or None."""
    timeout_ms = settings.timeout_ms if timeout_ms is None else timeout_ms
    return arrival + timeout_ms / 1000 if timeout_ms else None


def plan_generate(request: GenerateRequest, served: ServedModel, settings: Settings) -> list[Generate]:
    languages = served.languages.choose(request.source_language, request.target_language)
    request = _with_defaults(request, served, settings, languages)
    _refuse([*_limits(request, served, settings), *_contradictions(request)])
    options = Options(
        beam_size=request.beam_size,
        num_hypotheses=request.num_hypotheses,
        length_penalty=request.length_penalty,
        early_stopping=request.early_stopping,
        max_length=request.max_length or served.max_target_length,
        min_length=request.min_length,
        repetition_penalty=request.repetition_penalty,
        no_repeat_ngram_size=request.no_repeat_ngram_size,
        temperature=request.temperature,
        top_k=None if request.top_k is None else min(request.top_k, len(served.tokens)),
        top_p=request.top_p,
    )
    generation = Generation(
        texts=request.inputs,
        field_name="inputs",
        options=options,
        seed=request.seed,
        target_prefix=request.target_prefix or "",
        languages=languages,
        allow_unknown=request.allow_unknown,
        stream=request.stream,
    )
    return _tasks(generation, served)


def _with_defaults(
    request: GenerateRequest, served: ServedModel, settings: Settings, languages: Chosen
) -> GenerateRequest:
    if not served.defaults:
        return request
    fields = fitting_defaults(
        served.defaults,
        request,
        start=len(languages.start or ()),
        most_hypotheses=_most_hypotheses(served, settings),
        longest=served.max_target_length,
    )
    return request.model_copy(update=fields)


def plan_completion(request: CompletionRequest, served: ServedModel, settings: Settings) -> CompletionPlan:
    languages = served.languages.choose(request.source_language, request.target_language)
    samples = bool(request.temperature)
    choices = request.n or 1
    candidates = request.best_of or choices
    native = _as_native(request, served, settings, languages)
    beam_size = 1 if samples else native.beam_size
    _refuse(
        [
            *_completion_limits(request, served, settings, max(candidates, beam_size)),
            *_completion_contradictions(request, samples, choices, candidates, beam_size),
            *_completion_stream(request, samples, choices, candidates),
        ]
    )
    options = Options(
        beam_size=beam_size,
        num_hypotheses=1 if samples else choices,
        length_penalty=native.length_penalty,
        early_stopping=native.early_stopping,
        max_length=native.max_length or served.max_target_length,
        min_length=native.min_length,
        repetition_penalty=native.repetition_penalty,
        no_repeat_ngram_size=native.no_repeat_ngram_size,
        temperature=request.temperature or None,
        top_p=request.top_p if samples else None,
    )
    generation = Generation(
        texts=request.prompt,
        field_name="prompt",
        options=options,
        seed=None if request.seed is None else request.seed % SEEDS,
        tasks_per_text=candidates if samples else 1,
        languages=languages,
        allow_unknown=request.allow_unknown,
        stream=bool(request.stream),
        top_logprobs=request.logprobs or 0,
    )
    return CompletionPlan(_tasks(generation, served), generation.tasks_per_text, choices, request.logprobs)


def _as_native(
    request: CompletionRequest, served: ServedModel, settings: Settings, languages: Chosen
) -> GenerateRequest:
    """What a completion asks for in the native dialect's fields, the model's defaults filled in."""
    fields: dict[str, Any] = {"num_hypotheses": request.n or 1, "temperature": request.temperature or None}
    if request.beam_size or request.best_of:
        fields["beam_size"] = request.beam_size or request.best_of
    if "length_penalty" in request.model_fields_set and request.length_penalty is not None:
        fields["length_penalty"] = request.length_penalty
    if "early_stopping" in request.model_fields_set and request.early_stopping is not None:
        fields["early_stopping"] = request.early_stopping
    if request.max_tokens:
        fields["max_length"] = min(request.max_tokens, served.max_target_length)
    values = {"inputs": request.prompt, "beam_size": request.n or 1, **fields}
    native = GenerateRequest.model_construct(set(fields), **values)
    return _with_defaults(native, served, settings, languages)


def plan_next_token(request: NextTokenRequest, served: ServedModel) -> NextToken:
    if request.prefix and request.prefix_tokens is not None:
        raise InvalidFieldError("prefix and prefix_tokens are both given; leave one out.", "prefix_tokens")
    languages = served.languages.choose(request.source_language, request.target_language)
    source = encode_source(served, request.source, "source", languages.source_prefix, request.allow_unknown)
    field = "prefix" if request.prefix_tokens is None else "prefix_tokens"
    given = request.prefix if request.prefix_tokens is None else request.prefix_tokens
    prefix = encode_target(served, given, field, allow_unknown=request.allow_unknown)
    return NextToken(source=source, prefix=prefix, start=languages.start)


def plan_score(request: ScoreRequest, served: ServedModel) -> Score:
    languages = served.languages.choose(request.source_language, request.target_language)
    source = encode_source(served, request.source, "source", languages.source_prefix, request.allow_unknown)
    target = encode_target(served, request.target, "target", allow_unknown=request.allow_unknown)
    return Score(source=source, target=target, start=languages.start)


def input_seed(seed: int, place: int) -> int:
    """The seed of an input by its place: the request's own for the first, mixed (SplitMix64) for the others."""
    if place == 0:
        return seed
    mixed = (seed + place * 0x9E3779B97F4A7C15) % 2**64
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
    return (mixed ^ (mixed >> 31)) % SEEDS


def _tasks(generation: Generation, served: ServedModel) -> list[Generate]:
    options = generation.options
    unknown = generation.allow_unknown
    prefix = encode_target(served, generation.target_prefix, "target_prefix", options.max_length, unknown)
    sources = []
    problems: list[Problem] = []
    for place, text in enumerate(generation.texts):
        name = generation.field_name if len(generation.texts) == 1 else f"{generation.field_name}[{place}]"
        try:
            sources.append(encode_source(served, text, name, generation.languages.source_prefix, unknown))
        except InvalidFieldError as error:
            problems.append((name, error.message))
    _refuse(problems)
    repeated = [source for source in sources for _ in range(generation.tasks_per_text)]
    seed = generation.seed
    if options.samples and seed is None:
        seed = secrets.randbelow(SEEDS)
    return [
        Generate(
            source=source,
            options=replace(options, seed=input_seed(seed, place)) if options.samples and seed is not None else options,
            prefix=prefix,
            start=generation.languages.start,
            stream=generation.stream,
            top_logprobs=generation.top_logprobs,
        )
        for place, source in enumerate(repeated)
    ]


def _limits(request: GenerateRequest, served: ServedModel, settings: Settings) -> list[Problem]:
    """What is over a limit of the service or of the model."""
    problems = _too_many_texts("inputs", request.inputs, settings)
    most = _most_hypotheses(served, settings)
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


def _contradictions(request: GenerateRequest) -> list[Problem]:
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


def _completion_limits(request: CompletionRequest, served: ServedModel, settings: Settings, rows: int) -> list[Problem]:
    problems = _too_many_texts("prompt", request.prompt, settings)
    most = _most_hypotheses(served, settings)
    if rows > most:
        field = next(name for name in ("beam_size", "best_of", "n") if (getattr(request, name) or 1) == rows)
        problems.append((field, f"{field} takes a whole number from 1 to {most} here, not {rows}."))
    if request.temperature and request.temperature < LOWEST_TEMPERATURE:
        sentence = f"temperature takes 0 or a number from {LOWEST_TEMPERATURE} to 100, not {request.temperature}."
        problems.append(("temperature", sentence))
    if request.echo:
        problems.append(("echo", "echo takes false: repeating the prompt is not offered here."))
    return problems


def _completion_contradictions(
    request: CompletionRequest, samples: bool, choices: int, candidates: int, beam_size: int
) -> list[Problem]:
    problems = []
    if candidates < choices:
        problems.append(("best_of", f"best_of is {candidates} and n {choices}; best_of must be at least n."))
    if samples:
        if request.beam_size not in (None, 1):
            sentence = f"beam_size is {request.beam_size} with a temperature; sampling keeps no beam, leave one out."
            problems.append(("beam_size", sentence))
        return problems
    if request.best_of and beam_size != candidates:
        sentence = "best_of is the beam's size where nothing is sampled; leave out best_of or beam_size."
        problems.append(("best_of", sentence))
    elif beam_size < choices <= candidates:
        sentence = f"n is {choices} and beam_size {beam_size}; without a temperature n is at most beam_size."
        problems.append(("n", sentence))
    if (request.top_p or 1) < 1:
        sentence = f"top_p is {request.top_p} and nothing is sampled; give a temperature above 0 too."
        problems.append(("top_p", sentence))
    return problems


def _completion_stream(request: CompletionRequest, samples: bool, choices: int, candidates: int) -> list[Problem]:
    if not request.stream:
        if request.stream_options is not None:
            sentence = "stream_options is for a stream; leave it out, or set stream to true."
            return [("stream_options", sentence)]
        return []
    if samples and candidates > choices:
        sentence = f"best_of is {candidates} and n {choices}; the best of several samples cannot be streamed."
        return [("best_of", sentence)]
    if not samples and choices > 1:
        sentence = f"n is {choices}; of a beam only the best can be streamed. Sample, or leave out stream."
        return [("n", sentence)]
    return []


def _too_many_texts(field: str, texts: Sequence[str], settings: Settings) -> list[Problem]:
    if len(texts) <= settings.max_inputs:
        return []
    return [(field, f"{field} has {len(texts)} texts; send at most {settings.max_inputs} in a request.")]


def _most_hypotheses(served: ServedModel, settings: Settings) -> int:
    return min(settings.max_beam_size, served.description.max_rows)


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise combined_error(problems)
