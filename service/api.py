"""The Python API: a bundle's model in this process, without HTTP. `from attendant import Model`.

Importing this module is cheap: onnxruntime and the rest are imported with the first Model. Options, their ranges and
error messages are those of the HTTP API, whose planning code is shared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

from export.bundle import BundleError
from service.errors import DeadlineError, InvalidFieldError, NotReadyError, QueueFullError, StartError
from service.settings import Settings, SettingsError

if TYPE_CHECKING:
    from service.engine.interface import Submission
    from service.engine.tasks import Finished, NewTokens, Result, Task
    from service.requests.schemas import RequestModel
    from service.requests.served import ServedModel

    AnyRequest = TypeVar("AnyRequest", bound=RequestModel)

__all__ = [
    "BundleError",
    "DeadlineError",
    "Hypothesis",
    "InvalidFieldError",
    "Model",
    "NextToken",
    "NotReadyError",
    "Output",
    "Score",
    "ScoredToken",
    "SettingsError",
    "StartError",
    "TokenProbability",
]
RETRY_SECONDS = 0.01  # between two attempts to submit to a full queue
LIMITS = Settings(max_inputs=10**6, max_beam_size=4096, timeout_ms=0)  # no other clients to protect: only memory limits


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    text: str
    tokens: tuple[str, ...]  # without the end token
    token_texts: tuple[str, ...]  # readable form of each token; bytes that are no whole character as <0xE6>
    score: float  # sum of logprobs / length ** length_penalty, in nats; a language token counts in the length
    logprobs: tuple[float, ...]  # of each token, and of the end token if it was generated, in nats
    finish_reason: str  # stop: the end token was generated; length: max_length was reached; deadline: time was up


@dataclass(frozen=True, kw_only=True)
class Output:
    """The answer to one text."""

    hypotheses: tuple[Hypothesis, ...]  # best first; samples are not sorted

    @property
    def text(self) -> str:
        """The text of the first hypothesis."""
        return self.hypotheses[0].text


@dataclass(frozen=True, kw_only=True)
class TokenProbability:
    id: int  # in the target vocabulary
    token: str
    text: str  # what the token stands for
    probability: float
    logprob: float  # -inf where the probability is 0


@dataclass(frozen=True, kw_only=True)
class NextToken:
    tokens: tuple[TokenProbability, ...]  # most probable first
    entropy: float  # of the distribution over the whole vocabulary, in nats
    prefix_logprob: float  # of the prefix, in nats


@dataclass(frozen=True, kw_only=True)
class ScoredToken:
    token: str
    text: str  # what the token stands for
    logprob: float  # given the source and the tokens before it, in nats


@dataclass(frozen=True, kw_only=True)
class Score:
    logprob: float  # of the whole target, end token included, in nats
    tokens: tuple[ScoredToken, ...]  # the end token last


class TextOptions(TypedDict, total=False):
    source_language: str | None
    target_language: str | None
    allow_unknown: bool
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
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None


class NextTokenOptions(TextOptions, total=False):
    """Options of POST /v1/next-token."""

    prefix_tokens: Sequence[str] | None
    top_k: int
    temperature: float


class Model:
    """A bundle, loaded, certified and ready. Thread-safe: calls from several threads share batches."""

    def __init__(
        self,
        bundle: str | Path | None = None,
        *,
        provider: str = "auto",
        precision: str = "auto",
        threads: int = 0,
        lanes: int = 0,
        max_rows: int = 0,
    ) -> None:
        """`bundle` is a directory, or None for the embedded model; the rest is as in `attendant serve --help`.

        Raises BundleError, StartError or SettingsError if it cannot be used.
        """
        from service.generate import load_engine
        from service.requests.served import ServedModel

        settings = Settings(
            bundle=None if bundle is None else Path(bundle),
            provider=provider,
            precision=precision,
            threads=threads,
            lanes=lanes,
            max_rows=max_rows,
        )
        self._served = ServedModel(load_engine(settings))
        self._closed = False

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engine's threads; calls that are still being decoded fail with NotReadyError."""
        if not self._closed:
            self._closed = True
            self._served.engine.close()

    @property
    def name(self) -> str:
        return self._served.name

    @property
    def precision(self) -> str:
        return self._served.description.precision

    @property
    def provider(self) -> str:
        return self._served.description.provider

    @property
    def max_source_length(self) -> int:
        """Tokens, without the end token."""
        return self._served.description.max_source_length

    @property
    def max_target_length(self) -> int:
        """Tokens, with the end token."""
        return self._served.max_target_length

    @property
    def source_languages(self) -> list[str]:
        """Codes that `source_language` takes; empty if the model has no choice of it."""
        return list(self._served.languages.source)

    @property
    def target_languages(self) -> list[str]:
        """Codes that `target_language` takes; empty if the model has no choice of it."""
        return list(self._served.languages.target)

    @overload
    def generate(self, inputs: str, **options: Unpack[GenerateOptions]) -> Output: ...
    @overload
    def generate(self, inputs: list[str] | tuple[str, ...], **options: Unpack[GenerateOptions]) -> list[Output]: ...
    def generate(
        self, inputs: str | list[str] | tuple[str, ...], **options: Unpack[GenerateOptions]
    ) -> Output | list[Output]:
        """An Output for one text, or a list of them in order. Every text is checked before any is decoded."""
        from service.requests.planning import plan_generate
        from service.requests.schemas import GenerateRequest

        if inputs in ([], ()):
            return []
        texts = list(inputs) if isinstance(inputs, tuple) else inputs
        request = _request(GenerateRequest, options, GenerateOptions, {"inputs": texts})
        tasks = plan_generate(request, self._served, LIMITS)
        outputs = [_output(self._served, result) for result in self._run(tasks, request.timeout_ms, "inputs")]
        return outputs[0] if isinstance(inputs, str) else outputs

    def score(self, source: str, target: str, **options: Unpack[TextOptions]) -> Score:
        """The log-probability of a given target, token by token."""
        from service.requests.content import score_content
        from service.requests.planning import plan_score
        from service.requests.schemas import ScoreRequest

        request = _request(ScoreRequest, options, TextOptions, {"source": source, "target": target})
        task = plan_score(request, self._served)
        (result,) = self._run([task], request.timeout_ms, "source")
        found = score_content(self._served, task.target, result)
        tokens = tuple(
            ScoredToken(token=row["token"], text=row["text"], logprob=row["logprob"]) for row in found["tokens"]
        )
        return Score(logprob=found["logprob"], tokens=tokens)

    def next_token(self, source: str, prefix: str = "", **options: Unpack[NextTokenOptions]) -> NextToken:
        """The softmax over the next token after the beginning of a target."""
        from service.requests.content import next_token_content
        from service.requests.planning import plan_next_token
        from service.requests.schemas import NextTokenRequest

        request = _request(NextTokenRequest, options, NextTokenOptions, {"source": source, "prefix": prefix})
        (result,) = self._run([plan_next_token(request, self._served)], request.timeout_ms, "source")
        found = next_token_content(self._served, result, request.top_k, request.temperature)
        tokens = tuple(
            TokenProbability(**{name: row[name] for name in ("id", "token", "text", "probability", "logprob")})
            for row in found["tokens"]
        )
        return NextToken(tokens=tokens, entropy=found["entropy"], prefix_logprob=found["prefix_logprob"])

    def _run(self, tasks: Sequence[Task], timeout_ms: int | None, field: str) -> list[Any]:
        """Results in the order of the tasks; on an error it is raised, and tasks that still run are cancelled."""
        from service.requests.planning import deadline

        waiting = Waiting(len(tasks))
        until = deadline(timeout_ms, time.monotonic(), LIMITS)
        try:
            for place, task in enumerate(tasks):
                waiting.submissions.append(self._submit(task, waiting, place, until, field))
            return waiting.results()
        except BaseException:
            for submission in waiting.submissions:
                submission.cancel()
            raise

    def _submit(self, task: Task, waiting: Waiting, place: int, until: float | None, field: str) -> Submission:
        """Submit one task, waiting while the queue is full: a call may have more texts than the queue holds."""
        while True:
            if self._closed:
                raise NotReadyError("The model is closed; make another one.")
            try:
                return self._served.engine.submit([task], lambda event: waiting.on_event(place, event), until)
            except QueueFullError:
                time.sleep(RETRY_SECONDS)
            except InvalidFieldError as error:  # larger than the whole queue
                raise InvalidFieldError(error.message, field) from None


class Waiting:
    """Submitted tasks and their outcomes."""

    def __init__(self, count: int) -> None:
        self.submissions: list[Submission] = []
        self._outcomes: dict[int, Result | Exception] = {}
        self._count, self._done = count, threading.Event()

    def on_event(self, place: int, event: NewTokens | Finished) -> None:
        """Called in the engine's thread."""
        from service.engine.tasks import Finished

        if isinstance(event, Finished):
            self._outcomes[place] = event.answer
            if len(self._outcomes) == self._count:
                self._done.set()

    def results(self) -> list[Result]:
        self._done.wait()
        results = []
        for place in range(self._count):
            outcome = self._outcomes[place]
            if isinstance(outcome, Exception):
                raise outcome
            results.append(outcome)
        return results


def _request(kind: type[AnyRequest], options: Mapping[str, Any], known: Any, texts: Mapping[str, Any]) -> AnyRequest:
    """The HTTP API's request model with these fields; InvalidFieldError says what is wrong with them."""
    from service.requests.validation import validate

    names = [*texts, *known.__annotations__]
    for name in options:
        if name not in names:
            raise InvalidFieldError(f"{name} is no option; there are {', '.join(names)}.", name)
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    return validate(kind, {**texts, **given})


def _output(served: ServedModel, result: Any) -> Output:
    from service.requests.content import output_content

    rows = output_content(served, result, True)["hypotheses"]
    return Output(
        hypotheses=tuple(
            Hypothesis(
                text=row["text"],
                tokens=tuple(row["tokens"]),
                token_texts=tuple(row.get("token_texts", row["tokens"])),
                score=row["score"],
                logprobs=tuple(row["logprobs"]),
                finish_reason=row["finish_reason"],
            )
            for row in rows
        )
    )
