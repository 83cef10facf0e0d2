"""Answers as bytes, read strictly: what a server may not send is an error, whatever it was asked (RFC 9112)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) ([\t \x21-\x7e\x80-\xff]*)")
FIELD_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\x80-\xff\t]*?)[ \t]*")
DATE = re.compile(rb"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT")


class AnswerError(Exception):
    """An answer that breaks a MUST of the RFC, named."""


@dataclass
class Answer:
    status: int
    headers: dict[bytes, bytes] = field(default_factory=dict)  # lower-case names
    body: bytes = b""

    @property
    def closes(self) -> bool:
        return b"close" in self.headers.get(b"connection", b"").lower()


def read_answers(data: bytes, methods: tuple[bytes, ...] = ()) -> list[Answer]:
    """All answers of a connection that has ended; `methods` are those of the requests, GET or POST if not given."""
    found: list[Answer] = []
    finals = 0
    while data:
        method = methods[finals] if finals < len(methods) else b"GET"
        answer, data = _read_one(data, method)
        finals += answer.status >= 200
        found.append(answer)
        if answer.closes and data:
            raise AnswerError("9112 9.6: bytes follow an answer with Connection: close")
    return found


def _read_one(data: bytes, method: bytes) -> tuple[Answer, bytes]:
    head, separator, rest = data.partition(b"\r\n\r\n")
    if not separator:
        raise AnswerError(f"9112 2.1: an answer without end of its headers: {data[:80]!r}")
    line, *lines = head.split(b"\r\n")
    found = STATUS_LINE.fullmatch(line)
    if found is None:
        raise AnswerError(f"9112 4: this is no status line: {line[:80]!r}")
    answer = Answer(int(found[1]))
    for each in lines:
        parsed = FIELD_LINE.fullmatch(each)
        if parsed is None:
            raise AnswerError(f"9112 5: this is no header line: {each[:80]!r}")
        name = parsed[1].lower()
        if name in answer.headers and name in (b"content-length", b"content-type", b"date", b"etag", b"host"):
            raise AnswerError(f"9110 5.3: {name.decode()} came twice")
        answer.headers[name] = b", ".join(filter(None, (answer.headers.get(name), parsed[2])))
    _check_headers(answer)
    answer.body, rest = _read_body(answer, rest, method)
    return answer, rest


def _check_headers(answer: Answer) -> None:
    headers = answer.headers
    if b"transfer-encoding" in headers and b"content-length" in headers:
        raise AnswerError("9112 6.2: Content-Length beside Transfer-Encoding")
    if (answer.status < 200 or answer.status == 204) and headers.keys() & {b"transfer-encoding", b"content-length"}:
        raise AnswerError(f"9112 6.1: {answer.status} with a framing of its own")
    if answer.status < 200:
        return
    if 200 <= answer.status < 500 and b"date" not in headers:
        raise AnswerError(f"9110 6.6.1: {answer.status} without Date")
    if b"date" in headers and not DATE.fullmatch(headers[b"date"]):
        raise AnswerError(f"9110 5.6.7: this is no date: {headers[b'date']!r}")
    for status, name, section in ((405, b"allow", "15.5.6"), (401, b"www-authenticate", "15.5.2")):
        if answer.status == status and name not in headers:
            raise AnswerError(f"9110 {section}: {status} without {name.decode()}")


def _read_body(answer: Answer, rest: bytes, method: bytes) -> tuple[bytes, bytes]:
    if method == b"HEAD" or answer.status < 200 or answer.status in (204, 304):
        return b"", rest
    if answer.headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        return _read_chunks(rest)
    if b"content-length" not in answer.headers:
        return rest, b""
    if not answer.headers[b"content-length"].isdigit():
        raise AnswerError(f"9110 8.6: Content-Length {answer.headers[b'content-length']!r}")
    length = int(answer.headers[b"content-length"])
    if len(rest) < length:
        raise AnswerError(f"9112 6.3: {len(rest)} of {length} bytes came before the connection ended")
    return rest[:length], rest[length:]


def _read_chunks(rest: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        line, _, rest = rest.partition(b"\r\n")
        if not re.fullmatch(rb"[0-9A-Fa-f]+", line):
            raise AnswerError(f"9112 7.1: this is no chunk size: {line[:40]!r}")
        size = int(line, 16)
        if size == 0:
            if not rest.startswith(b"\r\n"):
                raise AnswerError("9112 7.1: the last chunk has no end")
            return body, rest[2:]
        body, rest = body + rest[:size], rest[size:]
        if not rest.startswith(b"\r\n"):
            raise AnswerError("9112 7.1: a chunk is not as long as it says")
        rest = rest[2:]
