"""A phrase as the tokens that it may come as in a target."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from attendant.service.text.tokenizer import Tokenizer

Ids = tuple[int, ...]
# Scripts that write words without spaces between them: Thai, Lao, Myanmar, Khmer, kana, Han.
SPACELESS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")


def forms_of(tokenizer: Tokenizer, text: str, unknown: int) -> list[tuple[Ids, bool]]:
    """The tokens of a phrase, and whether they count only where a target begins; none if it has no tokens.

    A tokenizer that marks the space before a word has two forms of it: without the space at the beginning, and with it
    anywhere. Before a script that has no spaces the form without one counts anywhere.
    """
    whole = tokenizer.encode(text, bare=True)
    twice = tokenizer.encode(f"{text} {text}", bare=True)
    spaced = twice[len(whole) :] if twice[: len(whole)] == whole else whole
    if not whole or unknown in spaced or spaced == whole or not spaced:
        spaced = whole
    if not whole:
        return []
    if SPACELESS.match(text):
        bare = _without_space(tokenizer, whole)
        return [(bare, False)] if bare == whole else [(whole, True), (bare, False)]
    return [(whole, False)] if spaced == whole else [(whole, True), (spaced, False)]


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


def cuts(
    tokenizer: Tokenizer, ids: Ids, texts: Sequence[str], by_text: Mapping[str, Sequence[int]], longest: int
) -> tuple[tuple[int, int, int], ...]:
    """All ways to cut the text of these ids into tokens, as edges (from, token, to) between places in it.

    Only this one where a text is more than the texts of its tokens, one after the other, as with words or bytes.
    `longest` is the most characters of a token.
    """
    text = "".join(texts[index] for index in ids)
    if tokenizer.decode(ids).strip() != text.strip():
        return tuple((place, token, place + 1) for place, token in enumerate(ids))
    reached, edges = {0}, []
    for start in range(len(text)):
        if start in reached:
            for stop, token in _tokens_from(text, start, by_text, longest):
                edges.append((start, token, stop))
                reached.add(stop)
    useful = {len(text)}
    for start, _, stop in reversed(edges):  # by ascending start, so that those after it are known
        if stop in useful:
            useful.add(start)
    return tuple(edge for edge in edges if edge[2] in useful)


def _tokens_from(
    text: str, start: int, by_text: Mapping[str, Sequence[int]], longest: int
) -> Iterator[tuple[int, int]]:
    for stop in range(start + 1, min(len(text), start + longest) + 1):
        for token in by_text.get(text[start:stop], ()):
            yield stop, token
