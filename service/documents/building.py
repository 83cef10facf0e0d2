"""From a source to its document: runs of text, pieces that come through, sentences, and the nodes of each segment."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attendant.service.documents.document import (
    Atom,
    Document,
    Node,
    Piece,
    Run,
    Segment,
    Tag,
    make_document,
    plain_run,
)
from attendant.service.documents.markup import REFERENCE, read_runs
from attendant.service.documents.protection import Protection
from attendant.service.documents.splitting import Part, Span, fit, split
from attendant.service.errors import InvalidFieldError

MOST_NODES = 1000  # of a segment: each is looked for in all of its answer
WITHIN_WORDS = (REFERENCE, "wbr")  # tags that end no address


@dataclass(frozen=True, kw_only=True)
class Reader:
    """What a model can read."""

    limit: int  # tokens of a segment
    spans: Callable[[str], list[Span]]  # where the tokens of a text are in it
    knows: Callable[[str], bool]  # whether the vocabulary has all of a text


@dataclass(frozen=True, kw_only=True)
class Format:
    """How a text is read."""

    split: str
    html: bool
    protection: Protection
    language: str  # of ISO 639, by whose abbreviations sentences are found
    most: int  # segments of all texts of a request


def build_document(source: str, form: Format, reader: Reader, field: str) -> Document:
    """InvalidFieldError, with this field, for more segments or tags than are taken."""
    runs = read_runs(source) if form.html else [plain_run(source)]
    segments = []
    for run in runs:
        for segment in _segments(source, _with_pieces(run, form.protection, reader), form, reader):
            if len(segment.nodes) > MOST_NODES:
                sentence = f"{field} has more than {MOST_NODES:,} tags and protected pieces in one sentence."
                raise InvalidFieldError(sentence, field)
            segments.append(segment)
            if len(segments) > form.most:
                sentence = f"{field} has more than {form.most:,} segments, the setting max_segments; send it in parts."
                raise InvalidFieldError(sentence, field)
    return make_document(source, segments)


def _segments(source: str, run: Run, form: Format, reader: Reader) -> Iterator[Segment]:
    for span in split(run.text, form.split, form.language, run.pieces):
        parts = [Part(*span)] if form.split == "none" and not form.html else None
        for part in parts or fit(run.text, span, reader.limit, reader.spans, _within(run.pieces, *span)):
            pieces = _within(run.pieces, part.start, part.stop)
            if _is_read(run.text, part, pieces):
                yield _segment(source, run, part, pieces)


def _within(pieces: Sequence[Piece], start: int, stop: int) -> Sequence[Piece]:
    """Those of a part, which is cut in none of them."""
    first = bisect_left(pieces, start, key=lambda piece: piece.start)
    return pieces[first : bisect_left(pieces, stop, key=lambda piece: piece.start)]


def _is_read(text: str, part: Part, pieces: Sequence[Piece]) -> bool:
    """Whether there is a letter or a digit outside of the pieces; else there is nothing to translate."""
    start = part.start
    for piece in pieces:
        if any(map(str.isalnum, text[start : piece.start])):
            return True
        start = piece.stop
    return any(map(str.isalnum, text[start : part.stop]))


def _with_pieces(run: Run, protection: Protection, reader: Reader) -> Run:
    """The run with the pieces that are protected; those that the vocabulary lacks are not in its text any more."""
    pieces = [
        Piece(start, stop, run.source_start(start), run.source_stop(stop))
        for begin, text in _between_markup(run)
        for start, stop in ((begin + first, begin + last) for first, last in protection.find(text))
    ]
    pieces = sorted([*run.pieces, *pieces], key=lambda piece: piece.start)
    run = replace(run, tags=_outside(run.tags, pieces))
    read: list[Piece] = []
    unread: list[Piece] = []
    for piece in pieces:
        text = run.text[piece.start : piece.stop]
        (read if reader.knows(text) and len(reader.spans(text)) <= reader.limit // 4 else unread).append(piece)
    return _without(replace(run, pieces=read), unread)


def _between_markup(run: Run) -> Iterator[tuple[int, str]]:
    """The parts of a run's text outside of its pieces, and where they begin; what is protected is in one of them."""
    cuts = [(tag.position, tag.position) for tag in run.tags if tag.name not in WITHIN_WORDS]
    cuts += [(piece.start, piece.stop) for piece in run.pieces]
    start = 0
    for stop, after in (*sorted(cuts), (len(run.text), len(run.text))):
        if stop > start:
            yield start, run.text[start:stop]
        start = max(start, after)


def _outside(tags: Sequence[Tag], pieces: Sequence[Piece]) -> list[Tag]:
    """Without the tags inside of pieces, which come through with these."""
    found = []
    for tag in tags:
        before = bisect_right(pieces, tag.start, key=lambda piece: piece.source_start)
        if not before or tag.start >= pieces[before - 1].source_stop:
            found.append(tag)
    return found


def _without(run: Run, unread: Sequence[Piece]) -> Run:
    """The run without the text of these pieces, which become tags; of white space on both sides, one is left."""
    if not unread:
        return run
    kept: list[str] = []
    atoms: list[Atom] = []
    tags: list[Tag] = []
    starts, ends, removed = [], [0], [0]  # where something was removed, and how much was up to there
    position = 0
    for piece in unread:
        before, after = (run.text[place : place + 1].isspace() for place in (piece.start - 1, piece.stop))
        kept.append(run.text[position : piece.start])
        atoms += [(begin - removed[-1], begun, size) for begin, begun, size in run.cut_atoms(position, piece.start)]
        place = piece.start - removed[-1]
        tags.append(Tag(place, piece.source_start, piece.source_stop, "single", spaced=(before, after)))
        position = piece.stop + (before and after)
        starts.append(piece.start)
        ends.append(position)
        removed.append(removed[-1] + position - piece.start)
    kept.append(run.text[position:])
    atoms += [(begin - removed[-1], begun, size) for begin, begun, size in run.cut_atoms(position, len(run.text))]

    def moved(place: int) -> int:
        """Where a position is now; one in what was removed, white space included, is where that was."""
        before = bisect_left(starts, place)
        return max(place, ends[before]) - removed[before]

    tags += [replace(tag, position=moved(tag.position)) for tag in run.tags]
    pieces = [replace(piece, start=moved(piece.start), stop=moved(piece.stop)) for piece in run.pieces]
    tags.sort(key=lambda tag: tag.start)
    return replace(run, text="".join(kept), atoms=atoms, tags=tags, pieces=pieces)


def _segment(source: str, run: Run, part: Part, pieces: Sequence[Piece]) -> Segment:
    first = bisect_left(run.tags, part.start, key=lambda tag: tag.position)
    tags = run.tags[first : bisect_right(run.tags, part.stop, key=lambda tag: tag.position)]
    pairs, in_order = _pairs(tags)
    begin, end = _edges(tags, pairs, part)
    inner = tags[begin:end]
    inside = {
        place - begin: other - begin for place, other in pairs.items() if begin <= place < end and begin <= other < end
    }
    nodes = _Nodes(source, run.text, part).of(inner, {} if in_order else inside, pieces, in_order)
    start, stop = run.source_start(part.start), run.source_stop(part.stop)
    if pieces:
        start, stop = min(start, pieces[0].source_start), max(stop, pieces[-1].source_stop)
    if inner:
        start, stop = min(start, inner[0].start), max(stop, inner[-1].stop)
    return Segment(
        text=run.text[part.start : part.stop],
        start=start,
        stop=stop,
        nodes=nodes,
        cut=part.cut,
        escaped=run.escaped,
        in_order=in_order,
    )


def _pairs(tags: Sequence[Tag]) -> tuple[dict[int, int], bool]:
    """Which tags open and close the same element, both ways; and whether elements cross each other."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    crossing = False  # then nobody has a partner
    for place, tag in enumerate(tags):
        if tag.kind == "open":
            opened.append(place)
        elif tag.kind == "close":
            found = next((each for each in reversed(opened) if tags[each].name == tag.name), None)
            if found is None:
                crossing = crossing or bool(opened)
                continue
            crossing = crossing or opened[-1] != found
            del opened[opened.index(found) :]
            pairs[found], pairs[place] = place, found
    return {} if crossing else pairs, crossing


def _edges(tags: Sequence[Tag], pairs: dict[int, int], part: Part) -> tuple[int, int]:
    """The tags that belong to the segment: not those before and after its text that are about all of it, or nothing."""
    begin, end = 0, len(tags)
    while begin < end and tags[begin].position == part.start and not _partly(tags, pairs, begin, part):
        begin += 1
    while end > begin and tags[end - 1].position == part.stop and not _partly(tags, pairs, end - 1, part):
        end -= 1
    return begin, end


def _partly(tags: Sequence[Tag], pairs: dict[int, int], place: int, part: Part) -> bool:
    """Whether a tag at an edge is of an element over some of the text, not all."""
    other = pairs.get(place)
    if other is None:
        return False
    ends = sorted((tags[place].position, tags[other].position))
    return ends[0] < ends[1] and ends != [part.start, part.stop]


class _Nodes:
    """The nodes of one segment, from its tags and pieces in their order; each knows the element that it is in."""

    def __init__(self, source: str, text: str, part: Part) -> None:
        self._source, self._text, self._part = source, text, part
        self._nodes: list[Node] = []
        self._path: list[int] = []  # elements that are open

    def of(
        self, tags: Sequence[Tag], pairs: dict[int, int], pieces: Sequence[Piece], in_order: bool
    ) -> tuple[Node, ...]:
        left = list(reversed(pieces))
        if not in_order:
            for place in reversed([p for p, tag in enumerate(tags) if tag.kind == "close" and p not in pairs]):
                tag = tags[place]  # it closes an element that was open before: the last one closed is around the others
                self._add(0, tag.position, opens=True, closing=self._raw(tag), from_start=True)
        for place, tag in enumerate(tags):
            while left and left[-1].start < tag.position:
                self._add_piece(left.pop())
            if tag.kind == "single" or in_order:
                self._add(tag.position, tag.position, piece=self._raw(tag), spaced=tag.spaced)
            elif tag.kind == "close":
                self._path.pop()
            elif place in pairs:
                closing = tags[pairs[place]]
                self._add(
                    tag.position, closing.position, opens=True, opening=self._raw(tag), closing=self._raw(closing)
                )
            else:
                self._add(tag.position, self._part.stop, opens=True, opening=self._raw(tag), to_end=True)
        for piece in reversed(left):
            self._add_piece(piece)
        return tuple(self._nodes)

    def _raw(self, tag: Tag) -> str:
        return self._source[tag.start : tag.stop]

    def _add_piece(self, piece: Piece) -> None:
        raw = self._source[piece.source_start : piece.source_stop]
        before, after = (self._text[place : place + 1].isspace() for place in (piece.start - 1, piece.stop))
        read = self._text[piece.start : piece.stop]
        self._add(piece.start, piece.stop, piece=raw, read=read, spaced=(piece.start > 0 and before, after))

    def _add(self, start: int, stop: int, opens: bool = False, **fields: Any) -> None:
        first = self._part.start
        parent = self._path[-1] if self._path else None
        self._nodes.append(Node(start=max(0, start - first), stop=stop - first, parent=parent, **fields))
        if opens:
            self._path.append(len(self._nodes) - 1)
