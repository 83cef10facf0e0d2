"""The Open Inference Protocol V2 over HTTP, so that clients of KServe and Triton can be pointed at this service."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import Response

from attendant.service.engine.tasks import Generate, Generated, Hypothesis
from attendant.service.errors import InvalidFieldError, InvalidJSONError, ServiceError
from attendant.service.http.building import extended
from attendant.service.http.context import Context, RequestContext, request_context
from attendant.service.http.endpoints.native import ERRORS
from attendant.service.http.endpoints.tensors import read_texts, tensor
from attendant.service.http.endpoints.v2_models import (
    MODEL,
    NO_SUCH_MODEL,
    ONLY_VERSION,
    OUTPUTS,
    V2,
    VERSION_OF_MODEL,
    check_version,
    errors,
)
from attendant.service.http.endpoints.v2_schemas import InferRequest, InferResponse
from attendant.service.http.guard.body import utf8
from attendant.service.http.guard.policy import Access, policy
from attendant.service.http.guard.record import record_of
from attendant.service.http.responses import LONG_RESPONSE
from attendant.service.http.route import GuardedRoute, Handle, body_model, parse_body
from attendant.service.http.submission import raise_first_failure
from attendant.service.requests.content import Check, Json, encode, no_check
from attendant.service.requests.planning import deadline, plan_generate
from attendant.service.requests.schemas import LONGEST_TIMEOUT_MS, GenerateRequest
from attendant.service.requests.served import ServedModel
from attendant.service.requests.validation import validate

INFER = MODEL + "/infer"
LONGEST_TIMEOUT = 1000 * LONGEST_TIMEOUT_MS  # microseconds
JSON_LENGTH = "inference-header-content-length"  # bytes of JSON, where binary tensors follow it
NOT_OPTIONS = ("model", "inputs", "stream", "logprobs", "all_or_nothing", "timeout_ms")
OPTIONS = tuple(name for name in GenerateRequest.model_fields if name not in NOT_OPTIONS)
PARAMETERS = (*OPTIONS, "timeout_ms", "timeout", "priority", "binary_data_output")
LARGEST_PRIORITY = 2**64 - 1


class InferRoute(GuardedRoute):
    """A body of JSON, followed by binary tensors if a header gives the length of the JSON."""

    def make_handler(self) -> Handle:
        kind, endpoint = body_model(self), self.endpoint

        async def handle(request: Request) -> Response:
            check_version(request)
            body = await request.body()
            length = _json_length(request.headers.get(JSON_LENGTH), len(body))
            model = cast(InferRequest, parse_body(kind, utf8(body[:length])))
            model._binary = body[length:]
            record_of(request.scope).mark("validate")
            context = await request_context(request)
            response: Response = await endpoint(name=request.path_params["name"], request=model, context=context)
            return response

        return handle


infer_router = APIRouter(route_class=InferRoute)


@infer_router.post(
    INFER,
    response_model=InferResponse,
    responses=errors(*(status for status in ERRORS if status != 422), **NO_SUCH_MODEL),
)
@infer_router.post(VERSION_OF_MODEL + "/infer", include_in_schema=False)
@policy(Access.API_KEY, label=INFER, names_model=True, dialect=V2)
async def infer(name: str, request: InferRequest, context: Context) -> Response:
    """Decode the texts of a BYTES tensor; parameters are the options of POST /v1/generate."""
    _check_model_name(request, name)
    arrival, statistics = context.record.arrival, context.statistics
    try:
        served, results, answered, response = await _infer(name, request, context)
    except ServiceError:
        if context.record.model:  # it exists
            statistics.failed(context.record.model, time.monotonic() - arrival)
        raise
    now = time.monotonic()
    statistics.succeeded(served.name, now - arrival, now - answered, results)
    return response


async def _infer(
    name: str, request: InferRequest, context: RequestContext
) -> tuple[ServedModel, list[Generated], float, Response]:
    """The model, its results, when they were there, and the answer."""
    wanted, asked = _outputs(request), generate_request(request)
    until = deadline(asked.timeout_ms, context.record.arrival, context.settings)
    characters = sum(map(len, asked.inputs)) + len(asked.target_prefix or "")
    served, tasks = await context.plan(
        name, characters, until, lambda served: plan_generate(asked, served, context.settings)
    )
    outcomes = await context.run(served, tasks, until, "inputs[0]")
    answered = time.monotonic()
    raise_first_failure(outcomes)  # a tensor has no place for the error of one text
    results = cast(list[Generated], outcomes)
    _note(context, asked, tasks, results)

    def build(_: Check = no_check) -> Response:
        columns = _columns(served, results, tasks[0].options.num_hypotheses)
        tensors = [tensor(name, OUTPUTS[name], columns[name], as_binary) for name, as_binary in wanted.items()]
        return _response(served, request, tensors)

    if sum(len(each.ids) for result in results for each in result.hypotheses) <= LONG_RESPONSE:
        return served, results, answered, build()
    return served, results, answered, await context.builder.run(build, extended(until), context.receive)


def _check_model_name(request: InferRequest, name: str) -> None:
    """KServe's client sends the name twice."""
    if request.model_name not in (None, name):
        sentence = f"model_name is {request.model_name[:100]!r} and the path names {name[:100]!r}; send one name."
        raise InvalidFieldError(sentence, "model_name")


def _json_length(header: str | None, size: int) -> int:
    if header is None:
        return size
    if not header.isascii() or not header.isdigit() or len(header) > 18 or int(header) > size:
        raise InvalidJSONError(f"{JSON_LENGTH} takes a number up to the body's {size} bytes, not {header[:40]!r}.")
    return int(header)


def generate_request(request: InferRequest) -> GenerateRequest:
    """The equivalent request of POST /v1/generate."""
    given = dict(request.parameters or {})
    unknown = [name for name in given if name not in PARAMETERS]
    if unknown:
        raise InvalidFieldError(
            f"{ascii(unknown[0])[1:-1][:40]} is no parameter; these are: {', '.join(PARAMETERS)}.", "parameters"
        )
    given.pop("binary_data_output", None)
    priority = given.pop("priority", 0)
    if type(priority) is not int or not 0 <= priority <= LARGEST_PRIORITY:
        raise InvalidFieldError("priority takes a whole number from 0; all requests have one priority.", "parameters")
    if "timeout" in given:
        microseconds = given.pop("timeout")
        if type(microseconds) is not int or not 1 <= microseconds <= LONGEST_TIMEOUT:
            raise InvalidFieldError(
                f"timeout takes a whole number of microseconds from 1 to {LONGEST_TIMEOUT}.", "parameters"
            )
        given.setdefault("timeout_ms", math.ceil(microseconds / 1000))
    return validate(GenerateRequest, {"inputs": read_texts(request.inputs[0], request._binary), **given})


def _outputs(request: InferRequest) -> dict[str, bool]:
    """The tensors to answer, by name, and whether each is sent as bytes after the JSON."""
    default = (request.parameters or {}).get("binary_data_output", False)
    if not isinstance(default, bool):
        raise InvalidFieldError("binary_data_output takes true or false.", "parameters")
    if request.outputs is None:
        return dict.fromkeys(OUTPUTS, default)
    wanted = {}
    for place, output in enumerate(request.outputs):
        parameters = output.parameters or {}
        as_binary = parameters.get("binary_data", default)
        if output.name not in OUTPUTS:
            sentence = f"outputs[{place}].name takes {', '.join(OUTPUTS)}, not {output.name[:40]!r}."
            raise InvalidFieldError(sentence, f"outputs[{place}].name")
        if set(parameters) - {"binary_data"} or not isinstance(as_binary, bool):
            sentence = f"outputs[{place}].parameters takes binary_data, true or false, and nothing else."
            raise InvalidFieldError(sentence, f"outputs[{place}].parameters")
        wanted[output.name] = as_binary
    return wanted


def _columns(served: ServedModel, results: Sequence[Generated], count: int) -> dict[str, list[list[Any]]]:
    """Each output's rows, one for each text; hypotheses missing at a deadline become "", NaN and "deadline"."""
    decode = served.engine.target_tokenizer.decode
    rows: list[list[Hypothesis | None]] = [
        [*result.hypotheses, *[None] * (count - len(result.hypotheses))] for result in results
    ]
    return {
        "text_output": [["" if each is None else decode(each.ids) for each in row] for row in rows],
        "score": [[math.nan if each is None else each.score for each in row] for row in rows],
        "finish_reason": [["deadline" if each is None else each.finish_reason for each in row] for row in rows],
    }


def _response(served: ServedModel, request: InferRequest, tensors: Sequence[tuple[Json, bytes]]) -> Response:
    content: Json = {
        "model_name": served.name,
        "model_version": ONLY_VERSION,
        "outputs": [described for described, _ in tensors],
    }
    if request.id is not None:
        content["id"] = request.id
    head = encode(content)
    if all("data" in described for described, _ in tensors):
        return Response(head, media_type="application/json")
    body = head + b"".join(data for _, data in tensors)
    return Response(body, media_type="application/octet-stream", headers={JSON_LENGTH: str(len(head))})


def _note(
    context: RequestContext, asked: GenerateRequest, tasks: Sequence[Generate], results: Sequence[Generated]
) -> None:
    """Add what the request's log line says of it."""
    record = context.record
    record.log_fields |= {
        "inputs": len(tasks),
        "source_tokens": sum(len(task.source) for task in tasks),
        "target_tokens": sum(len(each.logprobs) for result in results for each in result.hypotheses),
    }
    if context.settings.log_texts:
        record.log_fields["texts"] = asked.inputs
