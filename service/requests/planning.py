"""From a request to tasks for the engine; what a schema cannot check is checked here, all at once.

A request of either dialect, native or OpenAI's, becomes a `Generation`, which `make_tasks` turns into tasks. Limits of
the queue are checked by the engine.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attendant.service.engine.search.constraints.constraints import Constraints
from attendant.service.engine.tasks import Generate, Ids, NextToken, Options, Outcome, Score
from attendant.service.errors import InvalidFieldError
from attendant.service.requests.constraints import TERMS_BEAM, Phrases, problems_of, read_phrases
from attendant.service.requests.defaults import fitting_defaults
from attendant.service.requests.inputs import encode_source, encode_target, unknown_pieces
from attendant.service.requests.schemas import GenerateRequest, NextTokenRequest, ScoreRequest
from attendant.service.requests.served import ServedModel
from attendant.service.requests.validation import combined_error
from attendant.service.settings import Settings
from attendant.service.text.languages import Chosen

SEEDS = 2**63  # a seed is below this

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
    allow_unknown: bool | None = None  # None: as the model has it
    stream: bool = False
    top_logprobs: int = 0
    all_or_nothing: bool = True  # one text that cannot be decoded refuses all
    phrases: Phrases | None = None  # that must come or must not


@dataclass(frozen=True)
class PlannedTexts:
    """The tasks of the texts that can be decoded, and why the others cannot, by their place among all texts."""

    tasks: list[Generate]
    refused: Mapping[int, InvalidFieldError]
    unknown: Mapping[int, list[str]]  # pieces of a text that the vocabulary lacks, read as the unknown token

    def in_order(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """An outcome for each text: that of its task, or its refusal."""
        decoded = iter(outcomes)
        places = range(len(outcomes) + len(self.refused))
        return [self.refused[place] if place in self.refused else next(decoded) for place in places]


def deadline(timeout_ms: int | None, arrival: float, settings: Settings) -> float | None:
    """The deadline by time.monotonic(), or None; what a client asks for is cut to `max_timeout_ms`."""
    if timeout_ms is None:
        timeout_ms = settings.timeout_ms
    elif settings.max_timeout_ms:
        timeout_ms = min(timeout_ms, settings.max_timeout_ms)
    return arrival + timeout_ms / 1000 if timeout_ms else None


def plan_generate(
    request: GenerateRequest, served: ServedModel, settings: Settings, field_name: str = "inputs"
) -> list[Generate]:
    """The tasks of all texts; `field_name` is the name of their field in the client's request, for error messages."""
    return plan_texts(request.model_copy(update={"all_or_nothing": True}), served, settings, field_name).tasks


def plan_texts(
    request: GenerateRequest, served: ServedModel, settings: Settings, field_name: str = "inputs"
) -> PlannedTexts:
    """The tasks of the texts that can be decoded; if none can, or all must, the refusal is raised."""
    languages = served.languages.choose(request.source_language, request.target_language)
    request = checked(request, served, settings, languages)
    generation = Generation(
        texts=request.inputs,
        field_name=field_name,
        options=options_of(request, served),
        seed=request.seed,
        target_prefix=request.target_prefix or "",
        languages=languages,
        allow_unknown=request.allow_unknown,
        stream=request.stream,
        all_or_nothing=request.all_or_nothing,
        phrases=read_phrases(request, served, settings),
    )
    return make_tasks(generation, served)


def checked(request: GenerateRequest, served: ServedModel, settings: Settings, languages: Chosen) -> GenerateRequest:
    """The request with the model's defaults; InvalidFieldError says what it may not ask for."""
    request = with_defaults(request, served, settings, languages)
    refuse([*_limits(request, served, settings), *_contradictions(request)])
    return request


def options_of(request: GenerateRequest, served: ServedModel) -> Options:
    return Options(
        beam_size=request.beam_size,
        num_hypotheses=request.num_hypotheses,
        length_penalty=request.length_penalty,
        early_stopping=request.early_stopping,
        max_length=request.max_length or served.max_target_length,
        min_length=request.min_length,
        forced_end=served.forced_end,
        repetition_penalty=request.repetition_penalty,
        no_repeat_ngram_size=request.no_repeat_ngram_size,
        temperature=request.temperature,
        top_k=None if request.top_k is None else min(request.top_k, len(served.tokens)),
        top_p=request.top_p,
    )


def with_defaults(
    request: GenerateRequest, served: ServedModel, settings: Settings, languages: Chosen
) -> GenerateRequest:
    most = most_hypotheses(served, settings)
    fields: dict[str, Any] = {}
    if served.defaults:
        fields = fitting_defaults(
            served.defaults,
            request,
            start=served.start_length if languages.start is None else len(languages.start),
            most_hypotheses=most,
            longest=served.max_target_length,
        )
    given = request.model_fields_set
    if (request.terms or request.glossary) and "beam_size" not in given and request.temperature is None:
        fields["beam_size"] = min(max(TERMS_BEAM, fields.get("beam_size", 1), request.num_hypotheses), most)
    if request.choices:  # their lengths and repetitions are their own
        fields |= {name: 0 for name in ("min_length", "no_repeat_ngram_size") if name not in given}
    return request.model_copy(update=fields) if fields else request


def plan_next_token(request: NextTokenRequest, served: ServedModel, settings: Settings) -> NextToken:
    if request.prefix and request.prefix_tokens is not None:
        raise InvalidFieldError("prefix and prefix_tokens are both given; leave one out.", "prefix_tokens")
    languages = served.languages.choose(request.source_language, request.target_language)
    source = encode_source(served, request.source, "source", languages.source_prefix, request.allow_unknown)
    field = "prefix" if request.prefix_tokens is None else "prefix_tokens"
    given = request.prefix if request.prefix_tokens is None else request.prefix_tokens
    prefix = encode_target(served, given, field, allow_unknown=request.allow_unknown)
    phrases = read_phrases(request, served, settings)
    constraints = None if phrases is None else phrases.fixed
    if constraints is not None and constraints.choices is not None:
        if request.forbid:
            raise InvalidFieldError("choices are whole answers; leave out forbid, or choices.", "choices")
        if not constraints.choices.next_tokens(prefix, served.end):
            raise InvalidFieldError(f"no choice starts with {field}; leave one out.", field)
    return NextToken(source=source, prefix=prefix, start=languages.start, constraints=constraints)


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


def make_tasks(generation: Generation, served: ServedModel) -> PlannedTexts:
    options, unknown = generation.options, generation.allow_unknown
    prefix = encode_target(served, generation.target_prefix, "target_prefix", options.max_length, unknown)
    sources, refused = _encode_sources(generation, served)
    constraints = _constraints(generation, sources, refused, prefix)
    if refused and (generation.all_or_nothing or not sources):
        refuse([(error.field or "", error.message) for error in refused.values()])
    seed = generation.seed
    if options.samples and seed is None:
        seed = secrets.randbelow(SEEDS)
    count = generation.tasks_per_text
    tasks = [
        Generate(
            source=source,
            options=replace(options, seed=input_seed(seed, place)) if options.samples and seed is not None else options,
            prefix=prefix,
            start=generation.languages.start,
            stream=generation.stream,
            top_logprobs=generation.top_logprobs,
            constraints=constraints.get(text),
        )
        for text, source in sources.items()
        for place in range(text * count, (text + 1) * count)
    ]
    pieces = {place: unknown_pieces(served, generation.texts[place], source) for place, source in sources.items()}
    return PlannedTexts(tasks, refused, {place: found for place, found in pieces.items() if found})


def _encode_sources(generation: Generation, served: ServedModel) -> tuple[dict[int, Ids], dict[int, InvalidFieldError]]:
    """The ids of each text, and why a text has none, by its place."""
    sources: dict[int, Ids] = {}
    refused: dict[int, InvalidFieldError] = {}
    for place, text in enumerate(generation.texts):
        name = generation.field_name if len(generation.texts) == 1 else f"{generation.field_name}[{place}]"
        prefix = generation.languages.source_prefix
        try:
            sources[place] = encode_source(served, text, name, prefix, generation.allow_unknown)
        except InvalidFieldError as error:
            refused[place] = error
    return sources, refused


def _constraints(
    generation: Generation, sources: dict[int, Ids], refused: dict[int, InvalidFieldError], prefix: Ids
) -> dict[int, Constraints]:
    """Those of each text, by its place; a text whose terms do not fit goes from `sources` to `refused`."""
    found: dict[int, Constraints] = {}
    if generation.phrases is None:
        return found
    for place in list(sources):
        try:
            constraints = generation.phrases.constraints(generation.texts[place], prefix, generation.options)
        except InvalidFieldError as error:
            refused[place] = error
            del sources[place]
        else:
            if constraints is not None:
                found[place] = constraints
    return found


def _limits(request: GenerateRequest, served: ServedModel, settings: Settings) -> list[Problem]:
    """What is over a limit of the service or of the model."""
    problems = too_many_texts("inputs", request.inputs, settings)
    most = most_hypotheses(served, settings)
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
    problems = problems_of(
        request,
        request.model_fields_set,
        samples=request.temperature is not None,
        beam_size=request.beam_size,
        others=("min_length", "no_repeat_ngram_size"),
    )
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


def too_many_texts(field: str, texts: Sequence[str], settings: Settings) -> list[Problem]:
    if len(texts) <= settings.max_inputs:
        return []
    return [(field, f"{field} has {len(texts)} texts; send at most {settings.max_inputs} in a request.")]


def most_hypotheses(served: ServedModel, settings: Settings) -> int:
    return min(settings.max_beam_size, served.description.max_rows)


def refuse(problems: list[Problem]) -> None:
    if problems:
        raise combined_error(problems)
