"""A phrase as the tokens that it may come as in a target."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from attendant.service.text.tokenizer import Tokenizer

Ids = tuple[int, ...]
Edge = tuple[int, int, int]
# Scripts that write words without spaces between them: Thai, Lao, Myanmar, Khmer, kana, Han.
SPACELESS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")


class TokenTexts:
    """The tokens of a vocabulary by their texts, and those with punctuation beside a word; without special ones."""

    def __init__(self, texts: Sequence[str], special: Collection[int]) -> None:
        self.of = texts
        self.by_text: dict[str, list[int]] = {}
        # The latter by what stands in them after a place where a word begins or ends, before one, and between two.
        self.begun: dict[str, list[int]] = {}
        self.ended: dict[str, list[int]] = {}
        self.within: dict[str, list[int]] = {}
        left_out = set(special)
        for index, text in enumerate(texts):
            if index not in left_out:
                self.by_text.setdefault(text, []).append(index)
                self._add_mixed(index, text)
        self.longest = max(map(len, self.by_text), default=1)
        # After these a word may begin that has no space before it.
        self.edges = frozenset(index for index, text in enumerate(texts) if not text[-1:].isalnum())

    def _add_mixed(self, index: int, text: str) -> None:
        word = text.strip()
        if not word or word.isalnum():
            return
        blank = len(text) - len(text.lstrip())  # a space before a word is no punctuation
        stops = [place for place in range(1, len(text)) if not text[place - 1 : place + 1].isalnum()]
        starts = [place for place in stops if place > blank]
        found = [(self.begun, text[start:]) for start in starts] + [(self.ended, text[:stop]) for stop in stops]
        found += [(self.within, text[start:stop]) for start in starts for stop in stops if start < stop]
        for tokens, part in found:
            tokens.setdefault(part, []).append(index)


def forms_of(tokenizer: Tokenizer, text: str, unknown: int) -> list[tuple[Ids, bool]]:
    """The tokens of a phrase, and whether they count only at an edge; none if it has no tokens.

    An edge is where a target begins, and after a token that ends in no letter or digit: there a word has no space
    before it. A tokenizer that marks the space before a word has a form with it, which counts anywhere, and one
    without. Both count anywhere before a script that has no spaces, and for a phrase that begins with no letter or
    digit.
    """
    whole = tokenizer.encode(text, bare=True)
    if not whole:
        return []
    spaced = _after(tokenizer, f"{text} ", text, whole)
    if unknown in spaced:
        spaced = whole
    bare = _after(tokenizer, "(", text, ())
    if not bare or unknown in bare:
        bare = _without_space(tokenizer, whole)
    anywhere = SPACELESS.match(text) is not None or not text[0].isalnum()
    return [(ids, not anywhere and ids != spaced) for ids in dict.fromkeys((whole, spaced, bare))]


def _after(tokenizer: Tokenizer, before: str, text: str, otherwise: Ids) -> Ids:
    """The tokens that a text has after another one, where that keeps its own."""
    first, both = tokenizer.encode(before.strip(), bare=True), tokenizer.encode(f"{before}{text}", bare=True)
    return both[len(first) :] if both[: len(first)] == first and len(both) > len(first) else otherwise


def _without_space(tokenizer: Tokenizer, ids: Ids) -> Ids:
    """The ids without the mark of a space before the first, where the vocabulary has that too."""
    first = tokenizer.token(ids[0])
    bare = first.lstrip("\u2581\u0120 ")
    if bare == first:
        return ids
    index = tokenizer.index(bare) if bare else None
    if not bare:
        return ids[1:] or ids
    return ids if index is None else (index, *ids[1:])


def cuts(tokenizer: Tokenizer, ids: Ids, texts: TokenTexts) -> tuple[Edge, ...]:
    """All ways to cut the text of these ids into tokens, as edges (from, token, to) between places in it.

    The last token may go on with a character that is of no word. Only this one where a text is more than the texts of
    its tokens, one after the other, as with words or bytes.
    """
    text = "".join(texts.of[index] for index in ids)
    if not _is_joined(tokenizer, ids, text):
        return tuple((place, token, place + 1) for place, token in enumerate(ids))
    reached, edges = {0}, []
    for start in range(len(text)):
        if start in reached:
            for stop, token in _tokens_from(text, start, texts):
                edges.append((start, token, stop))
                reached.add(stop)
    return _useful(edges, len(text))


def cuts_inside(tokenizer: Tokenizer, ids: Ids, texts: TokenTexts) -> tuple[Edge, ...]:
    """As `cuts`, of those whose first token has punctuation before the phrase; there may be none."""
    text = "".join(texts.of[index] for index in ids)
    if not _is_joined(tokenizer, ids, text):
        return ()
    first = [(0, token, stop) for stop in range(1, len(text) + 1) for token in texts.begun.get(text[:stop], ())]
    first += [(0, token, len(text)) for token in texts.within.get(text, ())]
    return _useful([*first, *(edge for edge in cuts(tokenizer, ids, texts) if edge[0])], len(text)) if first else ()


def _is_joined(tokenizer: Tokenizer, ids: Ids, text: str) -> bool:
    return tokenizer.decode(ids).strip() == text.strip()


def _useful(edges: Sequence[Edge], last: int) -> tuple[Edge, ...]:
    """Those from which the last place can be reached; they come by ascending start."""
    useful = {last}
    for start, _, stop in reversed(edges):
        if stop in useful:
            useful.add(start)
    return tuple(edge for edge in edges if edge[2] in useful)


def _tokens_from(text: str, start: int, texts: TokenTexts) -> Iterator[tuple[int, int]]:
    for stop in range(start + 1, min(len(text), start + texts.longest) + 1):
        for token in texts.by_text.get(text[start:stop], ()):
            yield stop, token
    for token in texts.ended.get(text[start:], ()):
        yield len(text), token
