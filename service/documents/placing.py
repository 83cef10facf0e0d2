"""Puts tags and pieces into an answer, where its words are aligned with what they were about.

Guaranteed: each tag and piece of a segment comes exactly once, an element around what is inside of it, none across
another. Best effort: where that is.

The answer is cut into units, its words, which are not cut in turn. An element covers the run of units in which most are
aligned with its own source text: of +1 for such a unit and -1 for one of other text, the largest sum.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace

from attendant.service.documents.document import Node, Segment

Span = tuple[int, int]
CJK_START = 0x2E80
UNSPACED = range(0x0E00, 0x1100)  # Thai, Lao, Tibetan, Myanmar


@dataclass(frozen=True)
class Unit:
    start: int  # in the answer
    stop: int
    sources: tuple[int, ...]  # positions in the segment's text that it is aligned with


@dataclass
class Placed:
    node: Node
    first: int  # the units that it covers: from here
    last: int  # to before here
    children: list[Placed]
    taken: bool = False  # a piece that the answer has, or that replaces what it has


def place(segment: Segment, text: str, spans: Sequence[Span], aligned: Sequence[tuple[int, int]]) -> tuple[str, int]:
    """The answer's text with the nodes of its segment; and how many stand where the alignment puts them.

    `spans` are those of the answer's tokens in its text; `aligned` are pairs of a position in the segment's text and
    a token. Without any, the answer's words are taken to be in the order of the source.
    """
    units = _units(text, spans, aligned, len(segment.text))
    roots = _tree(segment.nodes)
    copies = _copies(segment.nodes, text, units)
    if segment.in_order:
        _place_in_order(roots, units, copies)
    else:
        _place_all(roots, 0, len(units), units, copies)
    return _Writer(segment, text, units).write(roots), len(segment.nodes) - len(copies)


def _units(text: str, spans: Sequence[Span], aligned: Sequence[tuple[int, int]], length: int) -> list[Unit]:
    """Words of the answer: its tokens, joined where a cut would be inside of a word."""
    sources: dict[int, list[int]] = {}
    for source, token in aligned:
        sources.setdefault(token, []).append(source)
    units: list[Unit] = []
    for token, (start, stop) in enumerate(spans):
        start = max(start, units[-1].stop if units else 0)
        if start >= stop or text[start:stop].isspace():
            continue
        found = tuple(sources.get(token, ()))
        if units and units[-1].stop == start and _in_word(text[start - 1], text[start]):
            before = units.pop()
            start, found = before.start, (*before.sources, *found)
        units.append(Unit(start, stop, found))
    if not any(unit.sources for unit in units):
        count = max(1, len(units))
        units = [replace(unit, sources=(place * length // count,)) for place, unit in enumerate(units)]
    return units


def _in_word(before: str, after: str) -> bool:
    return _joins(before) and _joins(after)


def _joins(character: str) -> bool:
    code = ord(character)
    spaced = code < CJK_START or 0xAC00 <= code < 0xD7B0  # Korean has spaces
    return (character.isalnum() or character in "'\u2019_") and spaced and code not in UNSPACED


def _tree(nodes: Sequence[Node]) -> list[Placed]:
    every = [Placed(node, 0, 0, []) for node in nodes]
    for placed in every:
        if placed.node.parent is not None:
            every[placed.node.parent].children.append(placed)
    return [placed for placed in every if placed.node.parent is None]


def _copies(nodes: Sequence[Node], text: str, units: Sequence[Unit]) -> dict[int, Span]:
    """Pieces that the model copied, by the identity of their node, with the units of the copy."""
    copies: dict[int, Span] = {}
    position: dict[str, int] = {}
    for node in nodes:
        if node.piece is None or not node.read:
            continue
        start = text.find(node.read, position.get(node.read, 0))
        if start < 0:
            continue
        stop = position[node.read] = start + len(node.read)
        inside = [place for place, unit in enumerate(units) if unit.start < stop and unit.stop > start]
        if inside and units[inside[0]].start == start and units[inside[-1]].stop == stop:
            copies[id(node)] = (inside[0], inside[-1] + 1)
    return copies


def _place_all(siblings: list[Placed], first: int, last: int, units: Sequence[Unit], copies: dict[int, Span]) -> None:
    """Give every sibling its units within these, none of them shared, and the same for those inside of it."""
    free = [True] * (last - first)
    for placed in sorted(siblings, key=lambda each: _urgency(each, copies)):
        node = placed.node
        found = copies.get(id(node))
        if found is not None and (
            found[0] < first or found[1] > last or not all(free[found[0] - first : found[1] - first])
        ):
            copies.pop(id(node))
            found = None
        if found is None and node.start < node.stop:
            found = _best(node, first, last, units, free)
        if found is not None:
            placed.first, placed.last, placed.taken = *found, True
            free[found[0] - first : found[1] - first] = [False] * (found[1] - found[0])
    for placed in siblings:
        if not placed.taken:
            placed.first = placed.last = _gap(placed.node, siblings, first, last, units)
        if placed.node.piece is None:
            _place_all(placed.children, placed.first, placed.last, units, copies)


def _urgency(placed: Placed, copies: dict[int, Span]) -> tuple[int, int]:
    """Who chooses first: what is fixed, then what is long."""
    node = placed.node
    fixed = 0 if id(node) in copies else 1 if node.from_start or node.to_end else 2
    return fixed, node.start - node.stop


def _best(node: Node, first: int, last: int, units: Sequence[Unit], free: Sequence[bool]) -> Span | None:
    """The free run of units with the largest sum above 0; a piece takes no unit of other text."""
    best, found, total, start = 0, None, 0, first
    for place in range(first, last):
        weight = _weight(node, units[place])
        if not free[place - first] or (weight < 0 and node.piece is not None):
            if node.from_start:
                break
            total, start = 0, place + 1
            continue
        if total < 0 and not node.from_start:
            total, start = 0, place
        total += weight
        if node.to_end:
            continue
        if total > best:
            best, found = total, (start, place + 1)
    return _best_end(node, first, last, units, free) if node.to_end else found


def _best_end(node: Node, first: int, last: int, units: Sequence[Unit], free: Sequence[bool]) -> Span | None:
    """As `_best`, of the runs that end with the last unit."""
    best, found, total = 0, None, 0
    for place in reversed(range(first, last)):
        if not free[place - first]:
            break
        total += _weight(node, units[place])
        if total > best:
            best, found = total, (place, last)
    return found


def _weight(node: Node, unit: Unit) -> int:
    if not unit.sources:
        return 0
    own = sum(node.start <= source < node.stop for source in unit.sources)
    return 1 if 2 * own > len(unit.sources) else -1


def _gap(node: Node, siblings: Sequence[Placed], first: int, last: int, units: Sequence[Unit]) -> int:
    """Where a node that covers nothing stands: between units, outside of its siblings."""
    if node.from_start:
        return first
    if node.to_end:
        return last
    gap = _after(node.start, first, last, units)
    for placed in siblings:
        if placed.taken and placed.first < gap < placed.last:
            return placed.last if node.start >= placed.node.stop else placed.first
    return gap


def _after(position: int, first: int, last: int, units: Sequence[Unit]) -> int:
    """The gap that parts best what is aligned with text before a position from what is with text after it."""
    score = best = 0
    gap = first
    for place in range(first, last):
        sources = units[place].sources
        before = sum(source < position for source in sources)
        score += (2 * before > len(sources)) - (2 * before < len(sources)) if sources else 0
        if score > best:
            best, gap = score, place + 1
    return gap


def _place_in_order(roots: list[Placed], units: Sequence[Unit], copies: dict[int, Span]) -> None:
    """Everything by itself, nothing before what is before it in the source."""
    gap = 0
    for placed in roots:
        found = copies.get(id(placed.node))
        if found is not None and found[0] >= gap:
            placed.first, placed.last = found
            gap = found[1]
            continue
        copies.pop(id(placed.node), None)
        gap = placed.first = placed.last = max(gap, _after(placed.node.start, 0, len(units), units))


class _Writer:
    def __init__(self, segment: Segment, text: str, units: Sequence[Unit]) -> None:
        self._text, self._units = text, units
        self._escaped = segment.escaped
        self._out: list[str] = []
        self._position = 0  # of the text that is written
        self._last = " "  # character of text or of a piece, whatever tags came since
        self._owed = False  # white space, before more text

    def write(self, roots: Sequence[Placed]) -> str:
        self._nodes(roots)
        self._up_to(len(self._text))
        return "".join(self._out)

    def _nodes(self, siblings: Sequence[Placed]) -> None:
        for placed in sorted(siblings, key=lambda each: (each.first, each.last)):
            node = placed.node
            if placed.first < placed.last:
                self._up_to(self._units[placed.first].start)
            elif placed.first:
                self._up_to(self._units[placed.first - 1].stop)
            if node.piece is not None or node.opening:
                self._space(self._begins_spaced(placed))
            if node.piece is not None:
                self._piece(node, placed)
                continue
            self._out.append(node.opening)
            self._nodes(placed.children)
            if placed.first < placed.last:
                self._up_to(self._units[placed.last - 1].stop)
            self._out.append(node.closing)

    def _piece(self, node: Node, placed: Placed) -> None:
        piece, is_copy = node.piece or "", self._is_copy(placed)
        self._out.append(piece)
        self._last = piece[-1:] or self._last
        if placed.first < placed.last:  # it replaces what the answer has
            self._position = self._units[placed.last - 1].stop
        self._owed = node.spaced[1] and not is_copy

    def _is_copy(self, placed: Placed) -> bool:
        """Whether the answer has the piece itself, and so the white space beside it."""
        if placed.first == placed.last:
            return False
        return self._text[self._units[placed.first].start : self._units[placed.last - 1].stop] == placed.node.read

    def _begins_spaced(self, placed: Placed) -> bool:
        """Whether what is written first is a piece with white space before it in the source, and not the answer's."""
        if placed.node.piece is not None:
            return placed.node.spaced[0] and not self._is_copy(placed)
        first = min(placed.children, key=lambda each: (each.first, each.last), default=None)
        if first is None or first.first != placed.first or first.node.start != placed.node.start:
            return False
        return self._begins_spaced(first)

    def _space(self, wanted: bool = False) -> None:
        """White space where the source has it beside a piece, unless it is there."""
        following = self._text[self._position : self._position + 1]
        if (wanted or (self._owed and following.isalnum())) and not self._last.isspace():
            self._out.append(" ")
            self._last = " "
        self._owed = False

    def _up_to(self, position: int) -> None:
        if position > self._position:
            self._space()
            part = self._text[self._position : position]
            self._out.append(html.escape(part, quote=False) if self._escaped else part)
            self._position, self._last = position, part[-1]
