"""What a request to LibreTranslate's API may be sent as: JSON, a form, or a form in parts."""

from __future__ import annotations

import json
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any
from urllib.parse import parse_qsl

from attendant.service.errors import InvalidFieldError

MOST_FIELDS = 100


def read_fields(content_type: str, body: bytes, query: str) -> dict[str, Any]:
    """The fields of a body, or of the query where there is none; InvalidFieldError if it cannot be read."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return _parts(content_type, body)
    if kind == "application/json" or body.lstrip()[:1] == b"{":
        return _json(body)
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_FIELDS)
        pairs += parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise InvalidFieldError("Invalid request: the form cannot be read") from None
    return dict(pairs)


def _json(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidFieldError("Invalid JSON format")
    return found


def _parts(content_type: str, body: bytes) -> dict[str, Any]:
    head = f"Content-Type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    message = BytesParser(policy=HTTP).parsebytes(head + body)
    fields: dict[str, Any] = {}
    for part in message.iter_parts() if message.is_multipart() else ():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(content, bytes) and len(fields) < MOST_FIELDS:
            fields[name] = content.decode("utf-8", "replace")
    return fields
