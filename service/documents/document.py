"""A text as segments to decode and what stays between them; positions count code points.

source   "<p>Hi <b>you</b>.</p>\\n"
parts    "<p>", Segment("Hi you.", nodes=[<b> over "you"]), "</p>\\n"
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

Atom = tuple[int, int, int]  # position in a run's text, start in the source, length in the source


@dataclass(frozen=True, kw_only=True)
class Node:
    """What is put back into a segment's answer: an element over part of its text, or a piece that nobody translates."""

    start: int  # in the segment's text
    stop: int  # equal to `start`: the model reads nothing of it
    opening: str = ""  # a tag as it was written; empty where it is outside of the segment
    closing: str = ""
    piece: str | None = None  # stands in place of what the answer has for this part of the text
    read: str = ""  # what the model reads of the piece
    spaced: tuple[bool, bool] = (False, False)  # whether white space is before and after the piece in the source
    from_start: bool = False  # an element that began before this segment: it covers the beginning of the answer
    to_end: bool = False  # one that ends after it
    parent: int | None = None  # the place, among the segment's nodes, of the element that it is in


@dataclass(frozen=True, kw_only=True)
class Segment:
    text: str  # that the model reads
    start: int  # in the source
    stop: int
    nodes: tuple[Node, ...] = ()  # an element before what is in it
    cut: bool = False  # of a sentence that was too long: it ends at a clause, a word or a character
    escaped: bool = False  # its answer is written as HTML
    # The tags overlap each other (<b><i></b></i>), so they keep their order, whatever the alignment says.
    in_order: bool = False


@dataclass(frozen=True)
class Document:
    source: str
    parts: tuple[str | Segment, ...]  # joined in this order

    @property
    def segments(self) -> list[Segment]:
        return [part for part in self.parts if isinstance(part, Segment)]


@dataclass(frozen=True)
class Tag:
    position: int  # in the run's text
    start: int  # in the source
    stop: int
    kind: str  # open, close or single
    name: str = ""
    spaced: tuple[bool, bool] = (False, False)  # of a piece that the model does not read


@dataclass(frozen=True)
class Piece:
    """Part of a run's text that comes through as it is written in the source."""

    start: int  # in the run's text
    stop: int
    source_start: int
    source_stop: int


@dataclass
class Run:
    """Text between two block elements, or a whole text without markup: what sentences are found in.

    `atoms` say where its characters are in the source: (position, source start, source length). Of an atom of one
    character, the source may have several, such as `&amp;`; the others have the same length in both.
    """

    text: str
    atoms: list[Atom] = field(default_factory=list)
    tags: list[Tag] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    escaped: bool = False

    def source_start(self, position: int) -> int:
        """Where the character at a position begins in the source."""
        begin, start, length = self._atom(position)
        return start if length > 1 and self._is_single(begin) else start + position - begin

    def source_stop(self, position: int) -> int:
        """Where the character before a position ends in the source."""
        begin, start, length = self._atom(position - 1)
        return start + length if self._is_single(begin) else start + position - begin

    def cut_atoms(self, start: int, stop: int) -> list[Atom]:
        """The atoms of a part of the text."""
        if start >= stop:
            return []
        found = []
        place = bisect_right(self.atoms, start, key=lambda atom: atom[0]) - 1
        while place < len(self.atoms) and self.atoms[place][0] < stop:
            begin, source, length = self.atoms[place]
            if self._is_single(begin):
                found.append((begin, source, length))
            else:
                first, last = max(begin, start), min(begin + length, stop)
                found.append((first, source + first - begin, last - first))
            place += 1
        return found

    def _atom(self, position: int) -> Atom:
        return self.atoms[bisect_right(self.atoms, position, key=lambda atom: atom[0]) - 1]

    def _is_single(self, begin: int) -> bool:
        place = bisect_right(self.atoms, begin, key=lambda atom: atom[0])
        end = self.atoms[place][0] if place < len(self.atoms) else len(self.text)
        return end - begin == 1


def plain_run(source: str) -> Run:
    return Run(source, [(0, 0, len(source))])


def make_document(source: str, segments: Sequence[Segment]) -> Document:
    """Segments in their order, and between them what is between them in the source."""
    parts: list[str | Segment] = []
    end = 0
    for segment in segments:
        parts += [source[end : segment.start], segment] if segment.start > end else [segment]
        end = segment.stop
    return Document(source, (*parts, source[end:]) if end < len(source) else tuple(parts))
