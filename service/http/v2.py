"""The Open Inference Protocol V2 over HTTP, so that clients of KServe and Triton can be pointed at this service."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from attendant_version import VERSION
from service.engine.tasks import Generate, Generated, Hypothesis
from service.errors import InvalidFieldError, InvalidJSONError, ServiceError
from service.http.context import Context, RequestContext, request_context
from service.http.loading import cannot_load
from service.http.native import ERRORS, Responses
from service.http.route import body_model, parse_body
from service.http.submission import run_tasks
from service.http.tensors import read_texts, tensor
from service.http.v2_schemas import (
    InferErrorResponse,
    InferRequest,
    InferResponse,
    LiveResponse,
    ModelMetadata,
    ModelReadyResponse,
    ReadyResponse,
    ServerMetadata,
    TensorDescription,
)
from service.requests.content import Json, encode
from service.requests.planning import deadline, plan_generate
from service.requests.schemas import LONGEST_TIMEOUT_MS, GenerateRequest
from service.requests.served import ServedModel
from service.requests.validation import validate

PREFIX = "/v2"
MODEL = PREFIX + "/models/{name}"
INFER = MODEL + "/infer"
LONGEST_TIMEOUT = 1000 * LONGEST_TIMEOUT_MS  # microseconds
JSON_LENGTH = "inference-header-content-length"  # bytes of JSON, where binary tensors follow it
OUTPUTS = {"text_output": "BYTES", "score": "FP32", "finish_reason": "BYTES"}
OPTIONS = tuple(
    name for name in GenerateRequest.model_fields if name not in ("model", "inputs", "stream", "logprobs", "timeout_ms")
)
PARAMETERS = (*OPTIONS, "timeout_ms", "timeout", "binary_data_output")

router = APIRouter()
probes = APIRouter()  # need no key


def error_format(_: str, error: ServiceError) -> tuple[int, Json]:
    return error.status, {"error": error.message}


def _errors(*statuses: int, **other: str) -> Responses:
    described = {**{str(status): ERRORS[status] for status in statuses}, **other}
    return {status: {"model": InferErrorResponse, "description": text} for status, text in described.items()}


NO_SUCH_MODEL = {"404": "There is no model of this name.", "4XX": "Any other refusal."}


class InferRoute(APIRoute):
    """A body of JSON, followed by binary tensors if a header gives the length of the JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        kind, endpoint = body_model(self), self.endpoint

        async def handle(request: Request) -> Response:
            body = await request.body()
            length = _json_length(request.headers.get(JSON_LENGTH), len(body))
            model = cast(InferRequest, parse_body(kind, body[:length]))
            model._binary = body[length:]
            context = await request_context(request)
            response: Response = await endpoint(name=request.path_params["name"], request=model, context=context)
            return response

        return handle


infer_router = APIRouter(route_class=InferRoute)


@infer_router.post(
    INFER,
    response_model=InferResponse,
    responses=_errors(*(status for status in ERRORS if status != 422), **NO_SUCH_MODEL),
)
async def infer(name: str, request: InferRequest, context: Context) -> Response:
    """Decode the texts of a BYTES tensor; parameters are the options of POST /v1/generate."""
    wanted, asked = _outputs(request), generate_request(request)
    until = deadline(asked.timeout_ms, context.record.arrival, context.settings)
    served, tasks = await context.plan(
        name, sum(map(len, asked.inputs)), until, lambda served: plan_generate(asked, served, context.settings)
    )
    outcomes = await run_tasks(served.engine, tasks, until, context.receive, "inputs[0]")
    for outcome in outcomes:
        if isinstance(outcome, Exception):  # a tensor has no place for the error of one text
            raise outcome
    results = cast(list[Generated], outcomes)
    _note(context, asked, tasks, results)
    columns = _columns(served, results, tasks[0].options.num_hypotheses)
    tensors = [tensor(name, OUTPUTS[name], columns[name], as_binary) for name, as_binary in wanted.items()]
    return _response(served, request, tensors)


@router.get(PREFIX, responses=_errors(401, 500))
async def server_metadata() -> ServerMetadata:
    """What this server is, and which extensions of the protocol it has."""
    return ServerMetadata(name="attendant", version=VERSION, extensions=["binary_tensor_data"])


@probes.get(PREFIX + "/health/live", responses=_errors(431))
async def live() -> LiveResponse:
    """The process is alive."""
    return LiveResponse(live=True)


@probes.get(PREFIX + "/health/ready", responses=_errors(431, 503))
async def ready(context: Context) -> ReadyResponse:
    """Ready: loaded, certified, warmed up, and not stopping."""
    context.models.check_ready()
    return ReadyResponse(ready=True)


@router.get(MODEL + "/ready", responses=_errors(401, 500, 503, **NO_SUCH_MODEL))
async def model_ready(name: str, context: Context) -> ModelReadyResponse:
    """The model of this name is loaded, or a request loads it."""
    model = context.models.find(name)
    if model.state == "failed":
        raise cannot_load(model)
    return ModelReadyResponse(name=model.name, ready=True)


@router.get(MODEL, responses=_errors(401, 500, 503, **NO_SUCH_MODEL))
async def model_metadata(name: str, context: Context) -> ModelMetadata:
    """The tensors that the model of this name takes and answers."""
    return ModelMetadata(
        name=context.models.find(name).name,
        versions=[],
        platform="attendant_onnxruntime",
        inputs=[TensorDescription(name="text_input", datatype="BYTES", shape=[-1])],
        outputs=[TensorDescription(name=each, datatype=datatype, shape=[-1, -1]) for each, datatype in OUTPUTS.items()],
    )


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
    content: Json = {"model_name": served.name, "outputs": [described for described, _ in tensors]}
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
    record.facts |= {
        "inputs": len(tasks),
        "source_tokens": sum(len(task.source) for task in tasks),
        "target_tokens": sum(len(each.logprobs) for result in results for each in result.hypotheses),
    }
    if context.settings.log_texts:
        record.facts["texts"] = asked.inputs
