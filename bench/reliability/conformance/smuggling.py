"""Bodies whose end two readers may see at different places (RFC 9112, 6.1, 6.3 and 11.2).

Every way to write Content-Length meets every way to write Transfer-Encoding, with a request hidden in what the one
reading takes for the body: it must never be answered.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.reliability.conformance.case import BODY, CHUNKS, HIDDEN, MUST, Case, case, post

LENGTHS = {
    "a length": b"Content-Length: %d",
    "a length with a sign": b"Content-Length: +%d",
    "a length with a comma": b"Content-Length: %d,",
    "a length before its colon": b"Content-Length : %d",
    "a length in lower case": b"content-length:%d",
    "a length that is folded": b"Content-Length:\r\n %d",
    "two lengths": b"Content-Length: 5\r\nContent-Length: %d",
    "a length with an underscore": b"Content_Length: %d",
}
CODINGS = {
    "chunked": b"Transfer-Encoding: chunked",
    "chunked in capitals": b"TRANSFER-ENCODING: CHUNKED",
    "chunked before its colon": b"Transfer-Encoding : chunked",
    "chunked behind a tab": b"Transfer-Encoding:\tchunked",
    "chunked that is folded": b"Transfer-Encoding:\r\n chunked",
    "chunked behind a control character": b"Transfer-Encoding: \x0bchunked",
    "chunked with quotes": b'Transfer-Encoding: "chunked"',
    "chunked with a parameter": b"Transfer-Encoding: chunked;a=b",
    "chunked and identity": b"Transfer-Encoding: chunked, identity",
    "identity and chunked": b"Transfer-Encoding: identity, chunked",
    "chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "a cow": b"Transfer-Encoding: cow",
    "almost chunked": b"Transfer-Encoding: xchunked",
    "a line in front that hides it": b"X: y\rTransfer-Encoding: chunked",
    "a line that ends with LF": b"X: y\nTransfer-Encoding: chunked",
    "an empty member": b"Transfer-Encoding: ,chunked",
    "a NUL behind it": b"Transfer-Encoding: chunked\0",
    "an underscore": b"Transfer_Encoding: chunked",
}
WELL_WRITTEN = ("a length", "a length in lower case", "chunked", "chunked in capitals", "chunked behind a tab")
BY_LENGTH, BY_CHUNKS = "by its length", "by its chunks"


def cases() -> Iterator[Case]:
    for length_name, length in LENGTHS.items():
        for coding_name, coding in CODINGS.items():
            # By its chunks the body ends before HIDDEN, by its length behind it; or the other way round.
            whole = CHUNKS + HIDDEN
            hidden_in_length = post(length % len(whole), coding, body=whole)
            hidden_in_chunks = post(coding, length % len(BODY), body=BODY + b"0\r\n\r\n" + HIDDEN)
            for order, sent in ((BY_LENGTH, hidden_in_length), (BY_CHUNKS, hidden_in_chunks)):
                name = f"{length_name}, {coding_name}, hidden {order}"
                behind = (
                    "200 404 end" if "underscore" in length_name and "LF" in coding_name else ""
                )  # it ends lines with LF, too
                allowed = _allowed(length_name, coding_name, order)
                yield case(name, "9112 6.3", MUST, sent, allowed, behind=behind)


def _allowed(length: str, coding: str, order: str) -> str:
    """Two framings of one message are refused; a header with an underscore frames nothing, so the other one holds."""
    no_length, no_coding = "underscore" in length, "underscore" in coding
    if no_length and no_coding:  # no body: what follows is garbage
        return "400 400|422 400"
    if no_coding and length in WELL_WRITTEN:
        return "400 end" if order == BY_LENGTH else "200 400"
    if no_length and (coding in WELL_WRITTEN or coding == "an empty member"):
        return "200 404 end|400|501" if order == BY_LENGTH else "400|501"
    return "400|501"
