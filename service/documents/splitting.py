"""Where a text is cut: at lines, at sentences, and within a sentence that is too long for the model.

Every cut is at a position of the text; white space at the ends of a part is outside of it, and nothing else is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from attendant.service.documents.document import Piece
from attendant.service.documents.extra import need

MODES = ("none", "lines", "sentences")
BLOCK = 1024  # characters handed to sentencex at once: its time grows with the square of what it is given
LARGEST_BLOCK = 2**14
CHARACTERS_TRIED = 16  # of a sentence that is too long, for each token of the limit
LINE = re.compile(r"[^\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")
CLAUSE = re.compile(
    r"[,;:.!?\u2013\u2014\u2026\u060c\u061b\u061f\u06d4\u0964](?=\s)|[\u3001\u3002\uff0c\uff1b\uff1a\uff01\uff1f]"
)
WORD = re.compile(r"(?<=\S)(?=\s)")

Span = tuple[int, int]


@dataclass(frozen=True)
class Part:
    start: int
    stop: int
    cut: bool = False  # it ends inside of a sentence


def split(text: str, mode: str, language: str, pieces: Sequence[Piece] = ()) -> list[Span]:
    """The parts of a text, none of them blank, none with white space at its ends; no cut is inside of a piece.

    `language` is a code of ISO 639, by whose abbreviations sentences are found.
    """
    if mode == "none":
        spans = [(0, len(text))]
    elif mode == "lines":
        spans = [line.span() for line in LINE.finditer(text)]
    else:
        spans = [span for line in LINE.finditer(text) for span in _sentences(text, *line.span(), language)]
    trimmed = (_trimmed(text, *span) for span in _outside(spans, pieces))
    return [span for span in trimmed if span[0] < span[1]]


def _sentences(text: str, start: int, stop: int, language: str) -> Iterator[Span]:
    """Of one line, a block at a time: the last sentence of a block may go on, so it begins the next one."""
    segment = need("sentencex", "split").segment
    size = BLOCK
    while start < stop:
        block = text[start : min(start + size, stop)]
        whole = start + len(block) == stop
        found = [sentence for sentence in segment(language, block) if sentence]
        if "".join(found) != block:  # it gave back another text: no cut is safe
            found = [block]
        if len(found) == 1 and not whole and size < LARGEST_BLOCK:
            size *= 2
            continue
        for sentence in found if whole or len(found) == 1 else found[:-1]:
            yield start, start + len(sentence)
            start += len(sentence)
        size = BLOCK


def _outside(spans: Sequence[Span], pieces: Sequence[Piece]) -> Iterator[Span]:
    """Spans joined over every piece that they would cut; `pieces` are in order."""
    left = iter(pieces)
    piece = next(left, None)
    begun: int | None = None
    for start, stop in spans:
        first = start if begun is None else begun
        while piece is not None and piece.stop <= stop:
            piece = next(left, None)
        if piece is not None and piece.start < stop < piece.stop:
            begun = first
            continue
        begun = None
        yield first, stop
    if begun is not None:
        yield begun, spans[-1][1]


def _trimmed(text: str, start: int, stop: int) -> Span:
    part = text[start:stop]
    return start + len(part) - len(part.lstrip()), stop - len(part) + len(part.rstrip())


def fit(
    text: str, span: Span, limit: int, spans_of: Callable[[str], list[Span]], pieces: Sequence[Piece] = ()
) -> list[Part]:
    """A part that is too long for `limit` tokens cut at clause marks, else at words, else at characters.

    `spans_of` gives where the tokens of a text are in it.
    """
    (start, end), parts = span, []
    while start < end:
        tried = text[start : min(end, start + CHARACTERS_TRIED * limit)]
        tokens = spans_of(tried)
        if len(tokens) <= limit and start + len(tried) == end:
            parts.append(Part(_trimmed(text, start, end)[0], end))
            break
        most = len(tried) if len(tokens) <= limit else max(1, tokens[limit][0])
        stop = start + _cut(tried, most)
        stop = next((p.start for p in pieces if start < p.start < stop < p.stop), stop)
        while stop - start > 1 and len(spans_of(text[start:stop])) > limit:  # fewer characters were more tokens
            stop = start + (stop - start) * 3 // 4
        first, last = _trimmed(text, start, stop)
        if first < last:
            parts.append(Part(first, last, cut=True))
        start = stop
    return parts


def _cut(text: str, most: int) -> int:
    """The last clause in the first `most` characters, unless it is near their beginning; else the last word."""
    clause = max((found.end() for found in CLAUSE.finditer(text, 0, most)), default=0)
    if clause and clause >= most // 4:
        return clause
    return max((found.start() for found in WORD.finditer(text, 1, most + 1)), default=0) or most
