"""A call of the Python API as tasks for the engine, and what makes an answer of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar

from attendant.service.api.results import NextToken, Output, Score, next_token_of, output_of, score_of
from attendant.service.errors import InvalidFieldError
from attendant.service.settings import Settings

if TYPE_CHECKING:
    from attendant.service.engine.tasks import Task
    from attendant.service.requests.documents import Plan
    from attendant.service.requests.schemas import RequestModel
    from attendant.service.requests.served import ServedModel

    AnyRequest = TypeVar("AnyRequest", bound=RequestModel)

Answer = TypeVar("Answer")
Texts = str | list[str] | tuple[str, ...]
# No other clients to protect: only memory limits, and texts are submitted as there is room.
LIMITS = Settings(
    max_inputs=10**9, max_beam_size=4096, max_phrases=10**6, max_segments=10**9, timeout_ms=0, max_timeout_ms=0
)


class TextOptions(TypedDict, total=False):
    source_language: str | None
    target_language: str | None
    allow_unknown: bool | None
    timeout_ms: int | None


class GenerateOptions(TextOptions, total=False):
    """Options of POST /v1/generate; those left out take the bundle's defaults."""

    beam_size: int
    num_hypotheses: int
    length_penalty: float
    early_stopping: bool | Literal["never"]
    max_length: int | None
    min_length: int
    repetition_penalty: float
    no_repeat_ngram_size: int
    target_prefix: str | None
    terms: Sequence[str | Mapping[str, Any]] | None
    glossary: str | None
    forbid: str | Sequence[str] | None
    choices: str | Sequence[str] | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    all_or_nothing: bool
    split: Literal["none", "lines", "sentences"]
    format: Literal["text", "html"]
    protect: Sequence[Literal["placeholders", "urls", "emails"]]
    protect_pattern: str | None


class NextTokenOptions(TextOptions, total=False):
    """Options of POST /v1/next-token."""

    prefix_tokens: Sequence[str] | None
    forbid: str | Sequence[str] | None
    choices: str | Sequence[str] | None
    top_k: int
    temperature: float


@dataclass(frozen=True)
class Call(Generic[Answer]):
    tasks: Sequence[Task]
    timeout_ms: int | None
    field: str  # that has the texts, for an error message
    answer: Callable[[list[Any]], Answer]  # takes the tasks' outcomes, in order
    plan: Plan | None = None  # of a call to generate


def generate_call(
    served: ServedModel, inputs: Texts, options: GenerateOptions, *, stream: bool = False
) -> Call[list[Output]]:
    """Every text is checked before any is decoded."""
    from attendant.service.requests.documents import plan_request
    from attendant.service.requests.schemas import GenerateRequest

    if inputs in ([], ()):
        return Call([], None, "inputs", list)
    texts = list(inputs) if isinstance(inputs, tuple) else inputs
    request = _request(GenerateRequest, options, GenerateOptions, {"inputs": texts}, stream=stream)
    planned = plan_request(request, served, LIMITS)

    def answer(decoded: list[Any]) -> list[Output]:
        found = planned.in_order(decoded)
        if request.all_or_nothing or all(isinstance(outcome, Exception) for outcome in found):
            for outcome in found:
                _result(outcome)
        return [
            output_of(served, outcome, planned.unknown.get(place, ()), planned.detected.get(place))
            for place, outcome in enumerate(found)
        ]

    return Call(planned.tasks, request.timeout_ms, "inputs", answer, planned)


def score_call(served: ServedModel, source: str, target: str, options: TextOptions) -> Call[Score]:
    from attendant.service.requests.planning import plan_score
    from attendant.service.requests.schemas import ScoreRequest

    request = _request(ScoreRequest, options, TextOptions, {"source": source, "target": target})
    task = plan_score(request, served)
    return Call(
        [task], request.timeout_ms, "source", lambda outcomes: score_of(served, task.target, _result(outcomes[0]))
    )


def next_token_call(served: ServedModel, source: str, prefix: str, options: NextTokenOptions) -> Call[NextToken]:
    from attendant.service.requests.planning import plan_next_token
    from attendant.service.requests.schemas import NextTokenRequest

    request = _request(NextTokenRequest, options, NextTokenOptions, {"source": source, "prefix": prefix})
    task = plan_next_token(request, served, LIMITS)
    return Call(
        [task], request.timeout_ms, "source", lambda outcomes: next_token_of(served, request, _result(outcomes[0]))
    )


def _result(outcome: Any) -> Any:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _request(
    kind: type[AnyRequest], options: Mapping[str, Any], known: Any, texts: Mapping[str, Any], **fixed: Any
) -> AnyRequest:
    """The HTTP API's request model with these fields; InvalidFieldError says what is wrong with them."""
    from attendant.service.requests.validation import validate

    names = [*texts, *known.__annotations__]
    for name in options:
        if name not in names:
            raise InvalidFieldError(f"{name} is no option; there are {', '.join(names)}.", name)
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    return validate(kind, {**texts, **given, **fixed})
