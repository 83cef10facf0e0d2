"""Requests and responses of the Open Inference Protocol V2, as KServe and Triton speak it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, PrivateAttr, WithJsonSchema

from attendant.service.requests.schemas import RequestModel, ResponseModel, option, value

ABOUT_BINARY = "binary_data_size, in bytes, where the data follows the JSON"
# The items of these lists are checked by service/http/endpoints/tensors.py.
SHAPE = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "maxItems": 2}
TEXT = {"type": "string", "minLength": 1}
DATA = {"type": "array", "items": {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}}


def _valid_unicode(text: str) -> str:
    """ValueError for a lone surrogate, which JSON can have and an answer cannot."""
    text.encode()
    return text


class InferInput(RequestModel):
    name: str = option(..., "text_input", "text_input")
    shape: Annotated[list[Any], WithJsonSchema(SHAPE)] = option(
        ..., "[number of texts], or [number of texts, 1]", "[texts] or [texts, 1]"
    )
    datatype: str = option(..., "BYTES", "BYTES")
    parameters: dict[str, Any] | None = option(None, ABOUT_BINARY, "an object, or null")
    data: Annotated[list[Any], WithJsonSchema(DATA)] | None = option(
        None, "the texts, flat or in rows; null where they follow the JSON", "a list of texts, or null"
    )


class InferOutput(RequestModel):
    name: str = option(..., "text_output, score or finish_reason", "text_output, score or finish_reason")
    parameters: dict[str, Any] | None = option(
        None, "binary_data: whether the tensor follows the JSON", "an object, or null"
    )


class InferRequest(RequestModel):
    id: Annotated[str, AfterValidator(_valid_unicode)] | None = option(
        None, "repeated in the answer", "a text of valid Unicode, or null"
    )
    model_name: str | None = option(
        None, "the name in the path, once more", "the name of the model in the path, or null"
    )
    parameters: dict[str, Any] | None = option(
        None,
        "options of POST /v1/generate by their names; timeout, in microseconds; priority, which is not used; "
        "binary_data_output, for all outputs",
        "an object, or null",
    )
    inputs: list[InferInput] = option(
        ..., "the one tensor with the texts", "a list of one tensor", min_length=1, max_length=1
    )
    outputs: list[InferOutput] | None = option(
        None,
        "the tensors to answer; null: all of them",
        "a list of up to 3 tensors, or null",
        max_length=3,
        fail_fast=True,
    )
    _binary: bytes = PrivateAttr(b"")  # the bytes after the JSON


class InferTensor(ResponseModel):
    name: str = value("of the tensor")
    shape: list[int] = value("texts, hypotheses of each")
    datatype: str = value("BYTES or FP32")
    parameters: dict[str, Any] | None = value(
        "binary_data_size, in bytes, where the data follows the JSON", default=None
    )
    data: list[Any] | None = value("row by row, unless it follows the JSON", default=None)


class InferResponse(ResponseModel):
    model_name: str = value("the model's name")
    model_version: str = value("1: a bundle has no number")
    id: str | None = value("as it was given; absent where none was", default=None)
    outputs: list[InferTensor] = value("the tensors")


class TensorDescription(ResponseModel):
    name: str = value("of the tensor")
    datatype: str = value("BYTES or FP32")
    shape: list[int] = value("-1 where it is free")


class ModelMetadata(ResponseModel):
    name: str = value("the model's name")
    versions: list[str] = value("1: a bundle has no number")
    platform: str = value("attendant_onnxruntime")
    inputs: list[TensorDescription] = value("what infer takes")
    outputs: list[TensorDescription] = value("what infer answers")


class IndexRequest(RequestModel):
    ready: bool = option(False, "list only models that are ready", "true or false")


class IndexedModel(ResponseModel):
    name: str = value("the model's name")
    version: str = value("1")
    state: str = value("READY: loaded, or a request loads it; LOADING; UNAVAILABLE: its bundle is refused")
    reason: str = value("why it is unavailable, or empty")


class ModelConfigTensor(ResponseModel):
    name: str = value("of the tensor")
    data_type: str = value("TYPE_STRING or TYPE_FP32")
    dims: list[int] = value("-1 where it is free")


class ModelConfig(ResponseModel):
    name: str = value("the model's name")
    platform: str = value("attendant_onnxruntime")
    backend: str = value("attendant")
    max_batch_size: int = value("0: the dimension of the texts is part of the shape")
    input: list[ModelConfigTensor] = value("what infer takes")
    output: list[ModelConfigTensor] = value("what infer answers")


class Duration(ResponseModel):
    count: int = value("of requests")
    ns: int = value("of all of them together", "ns")


class ModelStatisticsContent(ResponseModel):
    name: str = value("the model's name")
    version: str = value("1")
    last_inference: int = value("since 1970; 0: none yet", "ms")
    inference_count: int = value("texts that were answered")
    execution_count: int = value("requests that were answered")
    inference_stats: dict[str, Duration] = value(
        "success and fail, whole requests; queue, compute_input (encoder), compute_infer (decoder) and compute_output"
    )
    batch_stats: list[Any] = value("none: batches change with every step")


class StatisticsResponse(ResponseModel):
    model_stats: list[ModelStatisticsContent] = value("of one model, or of each")


class ServerMetadata(ResponseModel):
    name: str = value("attendant")
    version: str = value("of attendant")
    extensions: list[str] = value("of the protocol, that are offered")


class LiveResponse(ResponseModel):
    live: bool = value("true")


class ReadyResponse(ResponseModel):
    ready: bool = value("true")


class ModelReadyResponse(ResponseModel):
    name: str = value("the model's name")
    ready: bool = value("true")


class InferErrorResponse(ResponseModel):
    error: str = value("what to change, as a sentence")
