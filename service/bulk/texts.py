"""From lines to texts, from texts to tasks, and the messages for texts that cannot be answered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

from attendant.service.engine.tasks import Generated
from attendant.service.errors import InvalidFieldError, ServiceError
from attendant.service.requests.content import hypothesis_content
from attendant.service.requests.documents import Plan, plan_request
from attendant.service.requests.planning import input_seed
from attendant.service.requests.schemas import GenerateRequest
from attendant.service.requests.served import ServedModel
from attendant.service.settings import Settings

LIMITS = Settings(
    max_beam_size=4096, max_inputs=10**6, max_phrases=10**6, max_segments=10**6
)  # no other clients to protect: only memory limits
LONGEST_LINE = 2**20  # bytes
LINES_AHEAD = 1024  # read, and not written yet


def lines_of(stream: IO[bytes]) -> Iterator[bytes]:
    """Lines without their ends. Of one that is too long only the beginning is kept, which `decode_text` refuses."""
    for line, _ in measured_lines(stream):
        yield line


def measured_lines(stream: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Lines without their ends, each with the bytes that it took in the file."""
    while line := stream.readline(LONGEST_LINE):
        rest, size = line, len(line)
        while len(rest) == LONGEST_LINE and not rest.endswith(b"\n"):
            rest = stream.readline(LONGEST_LINE)
            size += len(rest)
        yield line.rstrip(b"\r\n"), size


def decode_text(text: bytes) -> str:
    if len(text) >= LONGEST_LINE - 1:
        raise InvalidFieldError(f"inputs has {LONGEST_LINE - 1:,} bytes or more; divide it into several lines.")
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(error) from None


def not_utf8(error: UnicodeDecodeError) -> InvalidFieldError:
    return InvalidFieldError(f"inputs is not UTF-8: its byte {error.start + 1} cannot be read.")


def plan_text(request: GenerateRequest, served: ServedModel, text: str, place: int) -> Plan:
    """The tasks of one text; its seed is the one that it would have in one request with all texts."""
    seed = None if request.seed is None else input_seed(request.seed, place)
    one = request.model_copy(update={"inputs": [text], "seed": seed, "all_or_nothing": True})
    return plan_request(one, served, LIMITS)


def texts_ahead(request: GenerateRequest, served: ServedModel) -> int:
    """Texts read ahead: as many as the queue holds, by their number and by the most tokens that each may take."""
    rows = max(request.beam_size, request.num_hypotheses)
    token_budget = served.description.max_source_length + 1 + rows * served.max_target_length
    fitting = served.description.max_queue_tokens // token_budget
    return max(1, min(LINES_AHEAD, served.description.max_queue_requests, fitting))


def text_line(served: ServedModel, answer: Generated) -> bytes:
    """The hypotheses, tab-separated; a text's own line breaks and tabs become spaces, so that lines match the input."""
    texts = [hypothesis_content(served, hypothesis, False)["text"] for hypothesis in answer.hypotheses]
    return ("\t".join(re.sub(r"[\r\n\t]", " ", text) for text in texts) + "\n").encode()


def complaint(error: Exception) -> str:
    message = error.message if isinstance(error, ServiceError) else f"{type(error).__name__}: {error}"
    return message.removeprefix("inputs ")


def error_type(error: Exception) -> str:
    return str(getattr(error, "type", ServiceError.type))
