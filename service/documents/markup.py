"""HTML to runs of text: what is read, where its tags are, and what comes through unread.

A scanner of our own, since the standard library's takes minutes for 60 kB of `<a "` on Pythons that are still in use,
and does not say what it read (docs/decisions/027). It goes forward only; what is no tag is text, and a tag or a comment
that never ends is left as it is, up to the end.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

from attendant.service.documents.document import Piece, Run, Tag

# Elements in the middle of a sentence. Any other ends it, but for those that HTML does not know.
BLOCKS = frozenset(
    re.findall(
        r"\w+",
        """address article aside base blockquote body br button canvas caption center col colgroup dd details dialog dir
        div dl dt fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html
        iframe legend li link main menu meta nav noframes noscript object ol optgroup option p param section select
        source summary table tbody td template tfoot th thead title tr track ul video audio""",
    )
)
VOID = frozenset(re.findall(r"\w+", "area base br col embed hr img input link meta param source track wbr"))
RAW = frozenset(["script", "style", "textarea", "xmp", "noembed"])  # that have no tags inside
UNREAD = RAW | frozenset(["code", "kbd", "math", "pre", "samp", "svg", "var"])
BLOCKS_UNREAD = frozenset(["script", "style", "textarea", "pre", "xmp", "noembed"])
REFERENCE = "&"  # the name of a tag that is a reference to no character that there is, or to several
NAME = re.compile(r"</?([A-Za-z][^\s/>]*)")
ENDING = re.compile(r"[>\"']")
UNTRANSLATED = re.compile(r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*["']?[^"'>]*\bnotranslate\b""", re.I)
# A reference to a character, and white space that is not one space.
SPECIAL = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});|[ \t\r\n\f]{2,}|[\t\r\n\f]")


@dataclass(frozen=True)
class Token:
    kind: str  # text, open, close, single or other: a comment or a declaration
    start: int
    stop: int
    name: str = ""
    unread: bool = False


def scan(source: str) -> Iterator[Token]:
    """Every part of the source, in order, nothing left out."""
    position = 0
    closings: dict[str, int] = {}  # of elements without tags inside: where the last search began that found none
    while position < len(source):
        token = _tag_at(source, position) if source[position] == "<" else None
        if token is None:
            stop = source.find("<", position + 1)
            token = Token("text", position, len(source) if stop < 0 else stop)
        yield token
        position = token.stop
        if token.kind == "open" and token.name in RAW and token.name not in closings:
            found = re.compile(rf"</{token.name}[\s/>]", re.I).search(source, position)
            if found is None:
                closings[token.name] = position
            elif found.start() > position:
                yield Token("other", position, found.start())
                position = found.start()


def _tag_at(source: str, start: int) -> Token | None:
    if source.startswith("<!--", start):
        return Token("other", start, _after(source, "-->", start + 4))
    if source.startswith(("<!", "<?"), start):
        return Token("other", start, _after(source, "]]>" if source.startswith("<![CDATA[", start) else ">", start + 2))
    name = NAME.match(source, start)
    if name is None:
        return None
    stop = _tag_end(source, name.end())
    if stop is None:
        return Token("other", start, len(source))
    tag = name[1].lower()
    if source[start + 1] == "/":
        return Token("close", start, stop, tag)
    single = tag in VOID or source[stop - 2] == "/"
    unread = tag in UNREAD or UNTRANSLATED.search(source, start, stop) is not None
    return Token("single" if single else "open", start, stop, tag, unread)


def _tag_end(source: str, position: int) -> int | None:
    """After the `>` that is in no quotes."""
    while (found := ENDING.search(source, position)) is not None:
        if found[0] == ">":
            return found.end()
        closing = source.find(found[0], found.end())
        if closing < 0:
            return None
        position = closing + 1
    return None


def _after(source: str, mark: str, start: int) -> int:
    found = source.find(mark, start)
    return len(source) if found < 0 else found + len(mark)


def read_runs(source: str) -> list[Run]:
    """The runs of text of an HTML source, in order; the rest is between them or in their tags."""
    reader = _Reader(source)
    for token in scan(source):
        reader.add(token)
    reader.end_run()
    return reader.runs


class _Reader:
    def __init__(self, source: str) -> None:
        self.runs: list[Run] = []
        self._source = source
        self._text: list[str] = []
        self._length = 0
        self._run = Run("", escaped=True)
        self._unread: Token | None = None  # the opening tag of an element that nobody reads
        self._depth = 0  # of elements of its name inside of it
        self._piece = 0  # where its text begins in the run

    def add(self, token: Token) -> None:
        if self._unread is not None:
            self._add_unread(token, self._unread)
        elif token.kind == "text":
            self._add_text(token.start, token.stop)
        elif token.kind == "open" and token.unread:
            if token.name in BLOCKS | BLOCKS_UNREAD:
                self.end_run()
            self._unread, self._depth, self._piece = token, 1, self._length
        elif token.name in BLOCKS:
            self.end_run()
        else:
            kind = token.kind if token.kind in ("open", "close") else "single"
            self._run.tags.append(Tag(self._length, token.start, token.stop, kind, token.name))

    def _add_unread(self, token: Token, opening: Token) -> None:
        """Its text is in the run, so that the sentence around it is whole."""
        block = opening.name in BLOCKS | BLOCKS_UNREAD
        if token.kind == "text" and not block:
            self._add_text(token.start, token.stop)
        if token.name == opening.name and token.kind in ("open", "close"):
            self._depth += 1 if token.kind == "open" else -1
        if self._depth:
            return
        self._unread = None
        if block:
            self.end_run()
        elif self._length > self._piece:
            self._run.pieces.append(Piece(self._piece, self._length, opening.start, token.stop))
        else:
            self._run.tags.append(Tag(self._length, opening.start, token.stop, "single"))

    def _add_text(self, start: int, stop: int) -> None:
        """References become their characters, white space one space."""
        position = start
        for found in SPECIAL.finditer(self._source, start, stop):
            self._append(self._source[position : found.start()], position, found.start() - position)
            position, length = found.end(), found.end() - found.start()
            read = html.unescape(found[0]) if found[0][0] == "&" else " "
            if len(read) == 1:
                self._append(read, found.start(), length)
            else:  # no reference that there is, or one to several characters
                self._run.tags.append(Tag(self._length, found.start(), found.end(), "single", REFERENCE))
        self._append(self._source[position:stop], position, stop - position)

    def _append(self, text: str, start: int, length: int) -> None:
        if text[:1] == " " and (not self._text or self._text[-1][-1] == " "):
            text, start, length = text[1:], start + 1, length - 1
        if text:
            self._run.atoms.append((self._length, start, length))
            self._text.append(text)
            self._length += len(text)

    def end_run(self) -> None:
        if self._unread is not None and self._length > self._piece:  # it never ended
            self._text, self._length = ["".join(self._text)[: self._piece]], self._piece
        self._run.text = "".join(self._text)
        if self._run.text.strip():
            self.runs.append(self._run)
        self._run, self._text, self._length = Run("", escaped=True), [], 0
