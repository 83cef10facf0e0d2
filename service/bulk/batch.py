"""The OpenAI batch format: requests to /v1/completions in, a line each; responses out, with their `custom_id`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attendant.service.bulk.formats import Finish, LineSource, LineWriter, Source, Writer, read_object
from attendant.service.bulk.texts import LIMITS, LINES_AHEAD, complaint
from attendant.service.engine.tasks import Generate, Outcome
from attendant.service.errors import InvalidFieldError, ServiceError, UnknownModelError
from attendant.service.openai.answers import Completion
from attendant.service.openai.completion_plan import plan_completion
from attendant.service.openai.errors import openai_error
from attendant.service.openai.paths import COMPLETIONS
from attendant.service.openai.schemas import CompletionRequest
from attendant.service.requests.content import encode
from attendant.service.requests.planning import input_seed
from attendant.service.requests.served import ServedModel
from attendant.service.requests.validation import validate

FIELDS = {"custom_id", "method", "url", "body"}


class BatchFormat:
    """`created` is the Unix time in every response; `seed` is for requests that have none."""

    suffix = "jsonl"

    def __init__(self, served: ServedModel, created: int, seed: int) -> None:
        self._served, self._created, self._seed = served, created, seed
        self.ahead = min(LINES_AHEAD, served.description.max_queue_requests)

    def source(self, path: Path) -> Source:
        return LineSource(path)

    def writer(self, path: Path) -> Writer:
        return LineWriter(path)

    def plan(self, raw: bytes, place: int) -> tuple[list[Generate], Finish]:
        line = _checked(read_object(raw))
        request = validate(CompletionRequest, line["body"])
        if request.model != self._served.name:
            sentence = f"There is no model {request.model[:100]!r} here; there is {self._served.name!r}."
            raise UnknownModelError(sentence, "model")
        if request.stream:
            raise InvalidFieldError("stream is not for a batch; leave it out.", "stream")
        if request.seed is None:
            request = request.model_copy(update={"seed": input_seed(self._seed, place)})
        plan = plan_completion(request, self._served, LIMITS)
        name = _name(place)

        def finish(outcomes: Sequence[Outcome]) -> bytes:
            completion = Completion(self._served, plan, request, name, created=self._created)
            return _line(name, line["custom_id"], 200, completion.content(outcomes))

        return plan.tasks, finish

    def refuse(self, raw: bytes, place: int, error: Exception) -> bytes:
        custom_id = None
        try:
            line = read_object(raw)
            custom_id = line.get("custom_id") if isinstance(line.get("custom_id"), str) else None
        except InvalidFieldError:
            pass
        if not isinstance(error, ServiceError):
            error = ServiceError(complaint(error))
        status, content = openai_error(error)
        return _line(_name(place), custom_id, status, content)

    def shown(self, raw: bytes) -> str:
        return raw.decode("utf-8", "backslashreplace")


def _checked(line: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(line) - FIELDS)
    if unknown:
        raise InvalidFieldError(
            f"{ascii(unknown[0])[1:-1][:40]} is no field of a batch's line; it takes custom_id, method, url, body."
        )
    if not isinstance(line.get("custom_id"), str):
        raise InvalidFieldError("custom_id is missing; it takes a text.", "custom_id")
    if (line.get("method"), line.get("url")) != ("POST", COMPLETIONS):
        raise InvalidFieldError(f"method and url take POST and {COMPLETIONS}.", "url")
    if not isinstance(line.get("body"), dict):
        raise InvalidFieldError("body takes a request to /v1/completions.", "body")
    return line


def _name(place: int) -> str:
    return f"{place + 1:012d}"


def _line(name: str, custom_id: str | None, status: int, body: dict[str, Any]) -> bytes:
    response = {"status_code": status, "request_id": name, "body": body}
    return encode({"id": f"batch_req_{name}", "custom_id": custom_id, "response": response, "error": None}) + b"\n"
