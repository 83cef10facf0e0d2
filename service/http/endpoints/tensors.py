"""Tensors of the Open Inference Protocol V2: texts as BYTES, in JSON or behind it (the binary tensor extension).

An element of BYTES is its length, 4 bytes little endian, and its UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from attendant.service.errors import InvalidFieldError
from attendant.service.http.endpoints.v2_schemas import InferInput

Json = dict[str, Any]
LENGTH = struct.Struct("<I")


def read_texts(tensor: InferInput, binary: bytes) -> list[str]:
    """The texts of a request's one input; `binary` is what followed its JSON."""
    if tensor.name != "text_input" or tensor.datatype != "BYTES":
        found = f"{tensor.name[:40]!r} of {tensor.datatype[:40]!r}"
        raise InvalidFieldError(f"inputs[0] takes the tensor 'text_input' of BYTES, not {found}.", "inputs[0]")
    if tensor.shape[1:] not in ([], [1]) or not all(type(n) is int and n >= 0 for n in tensor.shape):
        raise InvalidFieldError("inputs[0].shape takes [texts] or [texts, 1].", "inputs[0].shape")
    size = _binary_size(tensor)
    if (size is None) == (tensor.data is None):
        raise InvalidFieldError("inputs[0] takes either data or binary_data_size.", "inputs[0].data")
    if (size or 0) != len(binary):
        raise InvalidFieldError(
            f"inputs[0].parameters.binary_data_size is {size or 0}, and {len(binary)} bytes follow the JSON.",
            "inputs[0].parameters",
        )
    texts = list(_from_binary(binary)) if tensor.data is None else _flat(tensor.data)
    if [len(texts)] != tensor.shape[:1]:
        raise InvalidFieldError(
            f"inputs[0].shape is {tensor.shape}, and there are {len(texts)} texts.", "inputs[0].shape"
        )
    if not texts:
        raise InvalidFieldError("inputs[0] has no text; give one at least.", "inputs[0]")
    return texts


def tensor(name: str, datatype: str, rows: Sequence[Sequence[Any]], as_binary: bool) -> tuple[Json, bytes]:
    """A tensor of the answer: its part of the JSON, and the bytes that follow the JSON if `as_binary`."""
    values = [value for row in rows for value in row]
    described: Json = {"name": name, "datatype": datatype, "shape": [len(rows), len(rows[0])]}
    if not as_binary:
        return {**described, "data": values}, b""
    data = b"".join(map(_element if datatype == "BYTES" else struct.Struct("<f").pack, values))
    return {**described, "parameters": {"binary_data_size": len(data)}}, data


def _binary_size(tensor: InferInput) -> int | None:
    parameters = tensor.parameters or {}
    unknown = set(parameters) - {"binary_data_size"}
    size = parameters.get("binary_data_size")
    if unknown or (size is not None and (type(size) is not int or size < 0)):
        raise InvalidFieldError(
            "inputs[0].parameters takes binary_data_size, a whole number of bytes, and nothing else.",
            "inputs[0].parameters",
        )
    return size


def _flat(data: list[Any]) -> list[str]:
    texts = [text for item in data for text in (item if isinstance(item, list) else [item])]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidFieldError("inputs[0].data takes a list of texts.", "inputs[0].data")
    return texts


def _element(text: str) -> bytes:
    encoded = text.encode()
    return LENGTH.pack(len(encoded)) + encoded


def _from_binary(binary: bytes) -> Iterator[str]:
    place = 0
    while place < len(binary):
        start = place + LENGTH.size
        if start > len(binary) or (end := start + LENGTH.unpack_from(binary, place)[0]) > len(binary):
            raise InvalidFieldError("inputs[0] ends inside an element: its lengths do not fit its bytes.", "inputs[0]")
        try:
            yield binary[start:end].decode()
        except UnicodeDecodeError:
            raise InvalidFieldError(
                f"inputs[0] has an element that is not UTF-8, at byte {start}.", "inputs[0]"
            ) from None
        place = end
