"""From a completion of the OpenAI dialect to tasks for the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attendant.service.engine.tasks import Generate, Options
from attendant.service.openai.schemas import CompletionRequest
from attendant.service.requests.constraints import problems_of, read_phrases
from attendant.service.requests.planning import (
    SEEDS,
    Generation,
    Problem,
    make_tasks,
    most_hypotheses,
    refuse,
    too_many_texts,
    with_defaults,
)
from attendant.service.requests.schemas import LOWEST_TEMPERATURE, GenerateRequest
from attendant.service.requests.served import ServedModel
from attendant.service.settings import Settings
from attendant.service.text.languages import Chosen

PHRASES = ("terms", "glossary", "forbid", "choices")  # fields that mean the same in POST /v1/generate


@dataclass(frozen=True)
class CompletionPlan:
    """The tasks of a completion; `tasks_per_prompt` of them answer each prompt in turn."""

    tasks: list[Generate]
    tasks_per_prompt: int
    choices: int  # answered for each prompt
    logprobs: int | None  # top-k tokens answered at each position; None: not even the token's own log-probability

    @property
    def prompt_tokens(self) -> int:
        return sum(len(task.source) for task in self.tasks[:: self.tasks_per_prompt])


def plan_completion(
    request: CompletionRequest, served: ServedModel, settings: Settings, field: str = "prompt"
) -> CompletionPlan:
    languages = served.languages.choose(request.source_language, request.target_language)
    samples = bool(request.temperature)
    choices = request.n or 1
    candidates = request.best_of or choices
    native = _as_native(request, served, settings, languages)
    beam_size = 1 if samples else native.beam_size
    refuse(
        [
            *_limits(request, served, settings, max(candidates, beam_size)),
            *_contradictions(request, samples, choices, candidates, beam_size),
            *_stream_problems(request, samples, choices, candidates),
            *problems_of(native, native.model_fields_set, samples=samples, beam_size=beam_size, others=()),
        ]
    )
    options = Options(
        beam_size=beam_size,
        num_hypotheses=1 if samples else choices,
        length_penalty=native.length_penalty,
        early_stopping=native.early_stopping,
        max_length=native.max_length or served.max_target_length,
        min_length=native.min_length,
        forced_end=served.forced_end,
        repetition_penalty=native.repetition_penalty,
        no_repeat_ngram_size=native.no_repeat_ngram_size,
        temperature=request.temperature or None,
        top_p=request.top_p if samples else None,
    )
    generation = Generation(
        texts=request.prompt,
        field_name=field,
        options=options,
        seed=None if request.seed is None else request.seed % SEEDS,
        tasks_per_text=candidates if samples else 1,
        languages=languages,
        allow_unknown=request.allow_unknown,
        stream=bool(request.stream),
        top_logprobs=request.logprobs or 0,
        phrases=read_phrases(native, served, settings),
    )
    return CompletionPlan(make_tasks(generation, served).tasks, generation.tasks_per_text, choices, request.logprobs)


def _as_native(
    request: CompletionRequest, served: ServedModel, settings: Settings, languages: Chosen
) -> GenerateRequest:
    """The equivalent native request, with the model's defaults filled in."""
    fields: dict[str, Any] = {"num_hypotheses": request.n or 1, "temperature": request.temperature or None}
    if request.beam_size or request.best_of:
        fields["beam_size"] = request.beam_size or request.best_of
    if "length_penalty" in request.model_fields_set and request.length_penalty is not None:
        fields["length_penalty"] = request.length_penalty
    if "early_stopping" in request.model_fields_set and request.early_stopping is not None:
        fields["early_stopping"] = request.early_stopping
    fields |= {name: getattr(request, name) for name in PHRASES if getattr(request, name)}
    if request.max_tokens:
        fields["max_length"] = min(request.max_tokens, served.max_target_length)
    values = {"inputs": request.prompt, "beam_size": request.n or 1, **fields}
    native = GenerateRequest.model_construct(set(fields), **values)
    return with_defaults(native, served, settings, languages)


def _limits(request: CompletionRequest, served: ServedModel, settings: Settings, rows: int) -> list[Problem]:
    problems = too_many_texts("prompt", request.prompt, settings)
    most = most_hypotheses(served, settings)
    if rows > most:
        field = next(name for name in ("beam_size", "best_of", "n") if (getattr(request, name) or 1) == rows)
        problems.append((field, f"{field} takes a whole number from 1 to {most} here, not {rows}."))
    if request.temperature and request.temperature < LOWEST_TEMPERATURE:
        sentence = f"temperature takes 0 or a number from {LOWEST_TEMPERATURE} to 100, not {request.temperature}."
        problems.append(("temperature", sentence))
    if request.echo:
        problems.append(("echo", "echo takes false: repeating the prompt is not offered here."))
    return problems


def _contradictions(
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


def _stream_problems(request: CompletionRequest, samples: bool, choices: int, candidates: int) -> list[Problem]:
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
